package oracle

import (
	"slices"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

// The states, in the order in which they are printed.
const (
	lateDelivery    = "batches with late events committed"
	staleSkip       = "ranges passed in doubt"
	doubtIsVoid     = "positions proven void and passed"
	overPrepared    = "prepared transactions that the frontier had to wait for"
	overOpen        = "other transactions that it had to wait for"
	guardBlocks     = "batches stopped by the guard"
	zombieBlocked   = "of these, of a worker that came back from a stall"
	takeover        = "consumers taken over before their owner had let go"
	newLeader       = "leaders"
	handlerRetry    = "batches tried again after their handler failed"
	databaseRetry   = "batches tried again after the database failed"
	cutUnsent       = "workers cut off before a statement was sent"
	cutUnanswered   = "workers cut off after a statement, its answer lost"
	cutUncommitted  = "workers cut off before their COMMIT was sent"
	cutCommitted    = "workers cut off after their COMMIT, its answer lost"
	writerDone      = "writers' COMMITs without an answer that had happened"
	writerNotDone   = "writers' COMMITs without an answer that had not"
	workerDone      = "workers' COMMITs without an answer that had happened"
	workerNotDone   = "workers' COMMITs that were never sent"
	nativeCommits   = "transactions of pgx committed by writers"
	conflictInStore = "appends refused by the store or by a lock"
	takenBack       = "asynchronous commits of writers that a crash took back"
	reissued        = "positions in the log that had been given out before a crash"
	repairs         = "checkpoints set back after a handler had ended its transaction"
	unknowns        = "batches of such handlers that were left to an operator"
	restores        = "copies of the server put back"
	atHead          = "consumers placed at the head, past events"
	waitedFor       = "events that a consumer had handled when WaitFor said so"
	splits          = "units split"
	merges          = "units merged"
	partsUnfit      = "merges refused for a part paused, moved or replaced"
	eventAppeared   = "merges refused for an event that had just appeared"
	zombieOfGone    = "batches stopped by the guard whose unit was gone"
	resetWhileSplit = "units reset while their consumer was split"
	pauseWhileSplit = "units paused while their consumer was split"
	forgotten       = "ranges in doubt forgotten when a consumer was set back"
	replayed        = "events delivered again, as replays"
)

// The conditions.
const (
	OpenTransactions     Condition = "open transactions"      // that own positions, or will draw them
	OpenSessions         Condition = "open sessions"          // such transactions, not prepared ones
	PreparedTransactions Condition = "prepared transactions"  //
	MovedConsumers       Condition = "moved consumers"        // away from an owner that works
	StolenConsumers      Condition = "stolen consumers"       // whose old owner has not let go
	Zombies              Condition = "zombies"                // workers that come back after they were taken for dead
	FailingHandlers      Condition = "failing handlers"       //
	BrokenBatches        Condition = "broken batches"         // by the database
	CutConnections       Condition = "cut connections"        // at a statement or a COMMIT of a worker
	WorkersLostAtCommit  Condition = "workers lost at commit" //
	WritersLostAtCommit  Condition = "writers lost at commit" //
	StaleVersions        Condition = "stale versions"         // that appends demand
	UnsafeCommits        Condition = "unsafe commits"         // for whose safety writers do not wait
	ServerCrashes        Condition = "server crashes"         //
	BrokenContracts      Condition = "broken contracts"       // by handlers that end their transaction
	ServerSetBack        Condition = "server set back"        // to a copy
	ConsumersSetBack     Condition = "consumers set back"     // by an operator
	Rescaled             Condition = "rescaled consumers"     // by an operator
)

var states = []state{
	{name: lateDelivery, needs: []Condition{OpenTransactions}},
	{name: staleSkip, needs: []Condition{OpenTransactions}},
	{name: doubtIsVoid},
	{name: overPrepared, needs: []Condition{PreparedTransactions}},
	{name: overOpen, needs: []Condition{OpenSessions}},
	{name: guardBlocks, needs: []Condition{MovedConsumers}},
	{name: zombieBlocked, needs: []Condition{Zombies}},
	{name: takeover, needs: []Condition{StolenConsumers}},
	{name: newLeader},
	{name: handlerRetry, needs: []Condition{FailingHandlers}},
	{name: databaseRetry, needs: []Condition{BrokenBatches}},
	{name: cutUnsent, needs: []Condition{CutConnections}},
	{name: cutUnanswered, needs: []Condition{CutConnections}},
	{name: cutUncommitted, needs: []Condition{CutConnections}},
	{name: cutCommitted, needs: []Condition{CutConnections}},
	{name: writerDone, needs: []Condition{WritersLostAtCommit}},
	{name: writerNotDone, needs: []Condition{WritersLostAtCommit}},
	{name: workerDone, needs: []Condition{WorkersLostAtCommit}},
	{name: workerNotDone, needs: []Condition{WorkersLostAtCommit}},
	{name: nativeCommits},
	{name: conflictInStore, needs: []Condition{StaleVersions}},
	{name: takenBack, needs: []Condition{UnsafeCommits, ServerCrashes}},
	{name: reissued, needs: []Condition{UnsafeCommits, ServerCrashes}, rare: true},
	{name: repairs, needs: []Condition{BrokenContracts}},
	{name: unknowns, rare: true},
	{name: restores, needs: []Condition{ServerSetBack}},
	{name: atHead, rare: true},
	{name: waitedFor, rare: true},
	{name: forgotten, needs: []Condition{ConsumersSetBack, OpenTransactions}},
	{name: replayed, needs: []Condition{ConsumersSetBack}},
	{name: splits, needs: []Condition{Rescaled}},
	{name: merges, needs: []Condition{Rescaled}},
	{name: partsUnfit, rare: true},
	{name: eventAppeared, rare: true},
	{name: zombieOfGone, rare: true},
	{name: resetWhileSplit, rare: true},
	{name: pauseWhileSplit, rare: true},
}

// Reached counts the states that a run went through.
func Reached(e *history.Evidence) (all []State) {
	if e.Jobs != nil {
		return jobsReached(e)
	}
	counts := map[string]int64{}
	counts[takenBack], counts[reissued] = afterLives(e)
	counts[forgotten] = int64(len(e.Forgotten))
	counts[repairs], counts[restores] = int64(len(e.Repairs)), int64(len(e.Restores))
	counts[waitedFor], counts[pauseWhileSplit] = int64(e.Kept), int64(e.PausedParts)
	for _, o := range e.Operations {
		counts[resetWhileSplit] += one(o.Kind == history.OperationReset && isPart(o.Consumer))
	}
	for _, b := range e.Breaches {
		counts[unknowns] += one(b.Unknown != nil)
	}
	for _, x := range e.Ledger {
		counts[replayed] += one(x.Replay)
	}
	for _, p := range e.Placements {
		counts[atHead] += one(p.Visible > 0)
	}
	zombies := map[string]bool{} // workers back from a stall
	owner := map[string]string{} // of a consumer
	var there map[string]int64   // the units, in the last sample
	var stopped []string         // units of batches that were stopped after it, and that it lacks
	for _, r := range e.History.Records() {
		switch about := r.About.(type) {
		case history.Batch:
			counts[guardBlocks] += one(about.Outcome == history.BatchOvertaken)
			counts[zombieBlocked] += one(about.Outcome == history.BatchOvertaken && zombies[r.Who])
			counts[lateDelivery] += one(about.Outcome == history.BatchCommitted && about.Late > 0)
			if _, is := there[r.Consumer]; !is && there != nil && about.Outcome == history.BatchOvertaken {
				stopped = append(stopped, r.Consumer)
			}
		case history.Sample:
			for _, unit := range stopped {
				_, is := about.Checkpoints[unit]
				counts[zombieOfGone] += one(!is)
			}
			there, stopped = about.Checkpoints, nil
		case history.Rescaled:
			counts[splits] += one(len(about.From) == 1)
			counts[merges] += one(len(about.To) == 1)
		case history.Refusal:
			counts[partsUnfit] += one(about.Why == history.RefusedParts)
			counts[eventAppeared] += one(about.Why == history.RefusedEvent)
		case history.Gap:
			counts[staleSkip] += one(about.State == "open")
			counts[doubtIsVoid] += one(about.State == "void") * about.Missing
		case history.Blocker:
			counts[overPrepared] += one(about.Prepared)
			counts[overOpen] += one(!about.Prepared)
		case history.Retry:
			counts[handlerRetry] += one(about.ByHandler)
			counts[databaseRetry] += one(!about.ByHandler)
		case history.Transaction:
			counts[writerDone] += one(about.Unanswered && r.Kind == history.Committed)
			counts[writerNotDone] += one(about.Unanswered && r.Kind == history.RolledBack)
			counts[nativeCommits] += one(about.Native && r.Kind == history.Committed)
			counts[conflictInStore] += one(about.Error != "")
		case history.Injection:
			zombies[r.Who] = zombies[r.Who] || r.Kind == history.FaultOver && (about.Fault == history.Stalls || about.Fault == history.Stopped)
			if about.Fault == history.Cuts {
				counts[cuts[about.Where]]++
			}
			counts[workerDone] += one(about.Fault != history.ServerCrashes && strings.HasPrefix(about.Where, history.AfterCommit))
			counts[workerNotDone] += one(strings.HasPrefix(about.Where, history.BeforeCommit))
		default:
			counts[newLeader] += one(r.Kind == history.Leads)
			counts[takeover] += one(r.Kind == history.Owns && owner[r.Consumer] != "" && owner[r.Consumer] != r.Who)
			switch {
			case r.Kind == history.Owns:
				owner[r.Consumer] = r.Who
			case r.Kind == history.OwnsNoMore && owner[r.Consumer] == r.Who:
				owner[r.Consumer] = ""
			}
		}
	}
	for _, s := range states {
		all = append(all, State{s.name, counts[s.name]})
	}
	return all
}

// isPart reports whether a unit is one of several of its consumer.
func isPart(unit string) bool { return strings.Contains(unit, "#") }

// cuts are the states that a cut of a worker reaches, by the point of the cut.
var cuts = map[string]string{
	history.BeforeStatement: cutUnsent, history.AfterStatement: cutUnanswered,
	history.BeforeCommit: cutUncommitted, history.AfterCommit: cutCommitted,
}

// afterLives counts what crashes of the server took back, and positions that it issued again.
func afterLives(e *history.Evidence) (back, again int64) {
	log := byPosition(e.Log)
	given := slices.Clone(e.Abandoned)
	for _, transaction := range e.Unsure {
		back += one(surviving(transaction, log) == 0)
		given = append(given, transaction...)
	}
	for position, before := range byPosition(given) {
		event, there := log[position]
		again += one(there && event.EventID != before.EventID)
	}
	return back, again
}
