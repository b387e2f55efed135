package oracle

import (
	"cmp"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// The states of a run of jobs, in the order in which they are printed.
const (
	jobsCompleted    = "jobs completed"
	jobsFailedOften  = "jobs that failed at their last attempt"
	jobsFailedAtOnce = "jobs that their handler failed for good"
	jobsLostForGood  = "jobs that failed, as too many workers were lost with them"
	jobsDiscarded    = "jobs that their handler discarded"
	jobsCancelled    = "jobs cancelled before they ran"
	cancelledAtStart = "jobs cancelled when they were claimed and not started"
	jobsCancelledIn  = "jobs cancelled while they ran"
	expiredUnclaimed = "jobs expired before they were claimed"
	expiredAtStart   = "jobs expired when they were claimed and not started"
	expiredBetween   = "jobs expired between two runs"
	runsRetried      = "runs that failed and were tried again"
	runsDelayed      = "of these, when their handler said"
	runsPanicked     = "of these, after a panic"
	runsTimedOut     = "of these, after their time was over"
	runsUndone       = "of these, whose handler had not committed its completion"
	runsCutOff       = "runs whose transaction was lost with its connection"
	runsSnoozed      = "runs that snoozed"
	batchesHalved    = "runs in a part of their batch, after an error of another"
	runsReleased     = "runs given back, uncounted"
	prefetchedBack   = "of these, claimed and not started"
	runsLost         = "started runs reset after the loss of their worker"
	prefetchedLost   = "claimed runs reset that had not started"
	zombiesRefused   = "runs whose end was refused: their job was another's"
	zombieCommits    = "of these, at the COMMIT of their transaction"
	claimsUnsent     = "claims cut off before they were sent"
	claimsUnheard    = "claims that happened, their answer lost"
	runsAdopted      = "runs adopted by their worker after such a claim"
	endsUnsent       = "ends of runs cut off before they were sent"
	endsRepeated     = "ends of runs that happened, their answer lost"
	commitsUnsent    = "COMMITs of workers cut off before they were sent"
	commitsDoubted   = "COMMITs of workers that happened, their answer lost"
	committedLate    = "jobs committed after later ones had been claimed"
	keysTaken        = "jobs left out because another had their key"
	onceTaken        = "jobs left out because their key of Once was used"
	keysFreed        = "keys free again when their job started"
	capReached       = "claims that filled the cap of a queue"
	capOfAllReached  = "claims that filled the cap of all queues"
	resultsAwaited   = "results that Wait returned"
	jobsAsked        = "jobs that consumers enqueued for events"
	eventsLate       = "events that a consumer enqueued for late"
	eventsAgain      = "events that a consumer handled again, after it was set back"
	eventsByCopy     = "events that a consumer's copy handled in its name"
	notesRemoved     = "settled events whose notes were removed"
	jobsLeaders      = "leaders of job workers"
	ticksEnqueued    = "ticks of schedules that became jobs"
	ticksByAnother   = "of these, of another worker than the one before"
	ticksCaughtUp    = "ticks that became jobs late, before a later one"
	ticksMissed      = "ticks that were missed, beyond those caught up"
	ticksPaused      = "ticks that passed while their schedule was paused"
	ticksFought      = "times that a worker came second to a tick"
	ticksUnsent      = "moves of schedules cut off before they were sent"
	ticksUncommitted = "moves of schedules cut off before their COMMIT"
	timesReplaced    = "schedules given other times by a worker that started"
	schedulesRemade  = "schedules made again after they were removed"
	flowsCompleted   = "runs of flows that completed"
	flowsFailed      = "runs of flows that failed"
	flowsCancelled   = "runs of flows that were cancelled"
	flowsRetried     = "runs of flows that were retried"
	flowJoins        = "steps that several others had to end for"
	joinsAtOnce      = "of these, by the end of several at once"
	stepsSkipped     = "steps skipped for what they depend on"
	stepsUnneeded    = "steps that their handler skipped"
	listsSpread      = "lists whose elements became jobs"
	listsOfNone      = "lists of none"
	endsSwept        = "ends of steps that another worker told"
	tellsUnsent      = "ends of steps whose worker was cut off before it told them"
	tellsRepeated    = "ends of steps that were told, the answer lost"
	jobsTakenBack    = "asynchronous enqueues that a crash took back"
)

// Conditions of runs of jobs.
const (
	LateEnqueues       Condition = "late enqueues"
	Cancellations      Condition = "cancellations"
	TerminalHandlers   Condition = "terminal handlers"
	DiscardingHandlers Condition = "discarding handlers"
	DelayingHandlers   Condition = "delaying handlers"
	PanickingHandlers  Condition = "panicking handlers"
	HangingHandlers    Condition = "hanging handlers"
	UndoingHandlers    Condition = "undoing handlers"
	SnoozingHandlers   Condition = "snoozing handlers"
	StoppedWorkers     Condition = "stopped workers"
	LostWorkers        Condition = "lost workers"
	CappedQueues       Condition = "capped queues"
	CutClaims          Condition = "cut claims"
	CutEnds            Condition = "cut ends"
	RemovedNotes       Condition = "removed notes"
	UnsafeEnqueues     Condition = "unsafe enqueues"
	CutTicks           Condition = "cut ticks"
	PausedSchedules    Condition = "paused schedules"
	RemovedSchedules   Condition = "removed schedules"
	Deployments        Condition = "deployments"
	CutTells           Condition = "cut tells"
	AbortedFlows       Condition = "aborted flows"
	RevivedFlows       Condition = "revived flows"
	SkippingHandlers   Condition = "skipping handlers"
)

// jobStates are those of a run of jobs.
var jobStates = []state{
	{name: jobsCompleted},
	{name: jobsFailedOften, needs: []Condition{FailingHandlers}, slow: 1.5},
	{name: jobsFailedAtOnce, needs: []Condition{TerminalHandlers}},
	{name: jobsLostForGood, needs: []Condition{LostWorkers}, slow: 1.5},
	{name: jobsDiscarded, needs: []Condition{DiscardingHandlers}},
	{name: jobsCancelled, needs: []Condition{Cancellations}},
	{name: cancelledAtStart, needs: []Condition{Cancellations}, slow: 4},
	{name: jobsCancelledIn, needs: []Condition{Cancellations}},
	{name: expiredUnclaimed},
	{name: expiredAtStart, slow: 4},
	{name: expiredBetween, slow: 6},
	{name: runsRetried, needs: []Condition{FailingHandlers}},
	{name: runsDelayed, needs: []Condition{DelayingHandlers}},
	{name: runsPanicked, needs: []Condition{PanickingHandlers}},
	{name: runsTimedOut, needs: []Condition{HangingHandlers}},
	{name: runsUndone, needs: []Condition{UndoingHandlers}},
	{name: runsCutOff, needs: []Condition{WorkersLostAtCommit}},
	{name: runsSnoozed, needs: []Condition{SnoozingHandlers}},
	{name: batchesHalved, needs: []Condition{PanickingHandlers}, slow: 2},
	{name: runsReleased, needs: []Condition{StoppedWorkers}},
	{name: prefetchedBack, needs: []Condition{StoppedWorkers}, slow: 3},
	{name: runsLost, needs: []Condition{LostWorkers}},
	{name: prefetchedLost, needs: []Condition{LostWorkers}, slow: 2.5},
	{name: zombiesRefused, needs: []Condition{Zombies}, slow: 2.5},
	{name: zombieCommits, needs: []Condition{Zombies}, slow: 6},
	{name: claimsUnsent, needs: []Condition{CutClaims}, slow: 3},
	{name: claimsUnheard, needs: []Condition{CutClaims}},
	{name: runsAdopted, needs: []Condition{CutClaims}},
	{name: endsUnsent, needs: []Condition{CutEnds}, slow: 1.5},
	{name: endsRepeated, needs: []Condition{CutEnds}, slow: 2},
	{name: commitsUnsent, needs: []Condition{WorkersLostAtCommit}},
	{name: commitsDoubted, needs: []Condition{WorkersLostAtCommit}},
	{name: committedLate, needs: []Condition{LateEnqueues}},
	{name: keysTaken, slow: 2},
	{name: onceTaken, slow: 2},
	{name: keysFreed},
	{name: capReached, needs: []Condition{CappedQueues}},
	{name: capOfAllReached, needs: []Condition{CappedQueues}, slow: 2},
	{name: resultsAwaited, slow: 3},
	{name: jobsAsked},
	{name: eventsLate, needs: []Condition{LateEnqueues}, slow: 6},
	{name: eventsAgain, needs: []Condition{ConsumersSetBack}},
	{name: eventsByCopy},
	{name: notesRemoved, needs: []Condition{RemovedNotes}, slow: 6},
	{name: jobsLeaders},
	{name: ticksEnqueued},
	{name: ticksByAnother},
	{name: ticksCaughtUp},
	{name: ticksMissed},
	{name: ticksPaused, needs: []Condition{PausedSchedules}},
	{name: ticksFought},
	{name: ticksUnsent, needs: []Condition{CutTicks}, slow: 3},
	{name: ticksUncommitted, needs: []Condition{CutTicks}, slow: 1.5},
	{name: timesReplaced, needs: []Condition{Deployments}},
	{name: schedulesRemade, needs: []Condition{RemovedSchedules}},
	{name: flowsCompleted},
	{name: flowsFailed},
	{name: flowsCancelled},
	{name: flowsRetried, needs: []Condition{RevivedFlows}},
	{name: flowJoins},
	{name: joinsAtOnce},
	{name: stepsSkipped},
	{name: stepsUnneeded, needs: []Condition{SkippingHandlers}},
	{name: listsSpread},
	{name: listsOfNone},
	{name: endsSwept},
	{name: tellsUnsent, needs: []Condition{CutTells}, slow: 4},
	{name: tellsRepeated, needs: []Condition{CutTells}, slow: 8},
	{name: jobsTakenBack, needs: []Condition{UnsafeEnqueues, ServerCrashes}, slow: 2},
}

// jobPoints tell the states by where a worker of jobs was cut off.
var jobPoints = map[string]string{
	history.BeforeClaim: claimsUnsent, history.AfterClaim: claimsUnheard,
	history.BeforeEnd: endsUnsent, history.AfterEnd: endsRepeated,
	history.BeforeTick: ticksUnsent, history.AfterTick: ticksUncommitted,
	history.BeforeTell: tellsUnsent, history.AfterTell: tellsRepeated,
	history.BeforeCommit: commitsUnsent, history.AfterCommit: commitsDoubted,
}

// jobsReached counts the states that a run of jobs went through.
func jobsReached(e *history.Evidence) (all []State) {
	b, counts := newJobLedgers(e.Jobs), map[string]int64{}
	b.countEnds(counts)
	b.countRuns(counts)
	b.countClaims(counts)
	b.countEnqueued(counts)
	b.countSchedules(counts)
	b.countFlows(counts)
	for _, r := range e.History.Records() {
		if !slices.ContainsFunc(e.Jobs.Workers, func(w history.Runner) bool { return w.Name == r.Who }) {
			continue // of consumers
		}
		counts[jobsLeaders] += one(r.Kind == history.Leads)
		if about, ok := r.About.(history.Injection); ok && r.Kind == history.FaultInjected {
			counts[jobPoints[about.Where]]++
			counts[runsAdopted] += one(about.Where == history.AfterClaim) * b.adopted(r.Who, r.At)
		}
	}
	for _, s := range jobStates {
		all = append(all, State{s.name, counts[s.name]})
	}
	return all
}

// countEnds counts how jobs ended.
func (b *jobLedgers) countEnds(counts map[string]int64) {
	for _, x := range b.Finished {
		claimed, started := false, false // by the last claim, which may not have ended the job
		for _, a := range b.attempts[x.ID] {
			if a.Attempt == x.Attempt {
				claimed, started = true, a.StartedAt != nil
			}
		}
		switch x.State {
		case "completed":
			counts[jobsCompleted]++
		case "failed":
			counts[jobsLostForGood] += one(x.Code == "WORKER_LOST")
			counts[jobsFailedOften] += one(x.Failures >= cmp.Or(x.MaxAttempts, b.MaxAttempts))
			counts[jobsFailedAtOnce] += one(b.ranTo(x, history.RunTerminal))
		case "cancelled":
			counts[jobsDiscarded] += one(b.ranTo(x, history.RunDiscarded))
			counts[jobsCancelled] += one(x.Worker == "" && x.Attempt == 0)
			counts[cancelledAtStart] += one(x.Worker != "" && x.StartedAt == nil)
			counts[jobsCancelledIn] += one(x.CancelAsked && x.StartedAt != nil)
		case "expired":
			counts[expiredUnclaimed] += one(x.Attempt == 0)
			counts[expiredAtStart] += one(claimed && !started)
			counts[expiredBetween] += one(claimed && started)
		}
	}
}

// ranTo reports whether the handler of the run that ended a job did that.
func (b *jobLedgers) ranTo(x history.Finished, outcome string) bool {
	return slices.ContainsFunc(b.runs[runKey{x.ID, x.Attempt, x.Worker}], func(r history.JobRun) bool { return r.Outcome == outcome })
}

// countRuns counts what runs came to that did not end their job.
func (b *jobLedgers) countRuns(counts map[string]int64) {
	for _, a := range b.Attempts {
		counts[runsRetried] += one(a.Outcome == "error")
		counts[runsTimedOut] += one(a.Code == "TIMEOUT")
		counts[runsPanicked] += one(a.Code == "PANIC")
		counts[runsCutOff] += one(a.Code == "CONNECTION")
		counts[runsSnoozed] += one(a.Outcome == "snoozed")
		counts[runsReleased] += one(a.Outcome == "released")
		counts[prefetchedBack] += one(a.Outcome == "released" && a.StartedAt == nil)
		counts[runsLost] += one(a.Outcome == "lost" && a.StartedAt != nil)
		counts[prefetchedLost] += one(a.Outcome == "lost" && a.StartedAt == nil)
	}
	for _, r := range b.Runs {
		counts[runsDelayed] += one(r.Outcome == history.RunDelayed)
		counts[runsUndone] += one(r.Outcome == history.RunUndone)
	}
	for _, times := range b.runs {
		counts[batchesHalved] += one(len(times) > 1 && times[0].Outcome == history.RunWithBatch)
	}
	for _, t := range b.Told {
		runs := b.runs[runKey{t.ID, t.Attempt, t.Worker}]
		counts[zombiesRefused] += one(t.Lost)
		counts[zombieCommits] += one(t.Lost && len(runs) > 0 && runs[len(runs)-1].Outcome == history.RunOK && slices.Contains(withEffect, b.byToken[runs[0].Token].Kind))
	}
}

// countClaims counts what claims found.
func (b *jobLedgers) countClaims(counts map[string]int64) {
	for _, c := range b.Claims {
		counts[capReached] += one(c.Cap != nil && c.Running == *c.Cap)
		counts[capOfAllReached] += one(c.All != nil && c.Total == *c.All)
	}
	counts[committedLate] = b.late()
	held := map[int64]bool{}
	for _, s := range b.Steps {
		counts[keysFreed] += one(held[s.ID] && s.State == "running" && s.Key == "")
		held[s.ID] = s.Key != ""
	}
}

// countEnqueued counts what became of those who enqueue.
func (b *jobLedgers) countEnqueued(counts map[string]int64) {
	for _, q := range b.Enqueued {
		counts[jobsAsked] += one(q.Asked && b.tokens[q.Token] > 0)
		left := q.Existing && q.Outcome == history.EnqueueCommitted
		counts[keysTaken] += one(left && q.Key != "")
		counts[onceTaken] += one(left && q.Once != "")
		counts[jobsTakenBack] += one(q.Outcome == history.EnqueueUnsure && b.tokens[q.Token] == 0)
	}
	counts[resultsAwaited] = int64(b.Waited)
	e := b.Emitted
	counts[eventsLate], counts[eventsAgain], counts[eventsByCopy], counts[notesRemoved] = e.Late, e.Again, e.ByCopy, e.Settled
}

// adopted counts the runs of the claim whose answer a worker lost at a time: its last
// one before that. They began afterwards.
func (b *jobLedgers) adopted(worker string, lost float64) (n int64) {
	const recently = 0.5
	var last history.JobStep
	for _, s := range b.Steps {
		if s.State == "running" && s.At <= lost && s.At > lost-recently && s.At >= last.At && b.claimers[s.Claim] == worker {
			last = s
		}
	}
	for _, r := range b.Runs {
		if r.Name == worker && r.Began > lost && last.Claim != 0 && b.claimOf(r) == last.Claim {
			n++
		}
	}
	return n
}

// claimOf is the claim of a run.
func (b *jobLedgers) claimOf(r history.JobRun) int64 {
	for _, s := range b.steps[r.ID] {
		if s.State == "running" && s.Attempt == r.Attempt {
			return s.Claim
		}
	}
	return 0
}

// late counts the jobs whose commit came after a later one of their lane had been
// claimed: only a claim from the bottom finds them.
func (b *jobLedgers) late() (n int64) {
	type claim struct{ runAt, at float64 }
	last := map[lane]claim{}
	enqueued := map[int64]float64{}
	for _, q := range b.Enqueued {
		if !q.Existing && q.Outcome == history.EnqueueCommitted {
			enqueued[q.ID] = q.At
		}
	}
	for _, s := range b.Steps {
		l := lane{s.Queue, s.Priority}
		if s.State == "running" && s.Was == "available" {
			if at, ok := enqueued[s.ID]; ok && s.Attempt == 1 && s.RunAt < last[l].runAt && last[l].at < at {
				n++
			}
			if s.RunAt > last[l].runAt {
				last[l] = claim{s.RunAt, s.At}
			}
		}
	}
	return n
}
