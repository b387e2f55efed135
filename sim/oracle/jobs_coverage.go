package oracle

import (
	"github.com/pgfrontier/worker/sim/history"
)

// The states of a run of jobs, in the order in which they are printed.
const (
	jobsCompleted   = "jobs completed"
	jobsFailed      = "jobs that failed for good"
	jobsCancelled   = "jobs cancelled before they ran"
	jobsCancelledIn = "jobs cancelled while they ran"
	jobsExpired     = "jobs expired"
	runsRetried     = "runs that failed and were tried again"
	runsSnoozed     = "runs that snoozed"
	runsReleased    = "runs given back, uncounted"
	prefetchedBack  = "of these, claimed and not started"
	runsLost        = "started runs reset after the loss of their worker"
	prefetchedLost  = "claimed runs reset that had not started"
	zombiesRefused  = "runs whose end was refused: their job was another's"
	claimsUnsent    = "claims cut off before they were sent"
	claimsAdopted   = "claims that happened, their answer lost"
	endsUnsent      = "ends of runs cut off before they were sent"
	endsRepeated    = "ends of runs that happened, their answer lost"
	commitsUnsent   = "COMMITs of workers cut off before they were sent"
	commitsDoubted  = "COMMITs of workers that happened, their answer lost"
	committedLate   = "jobs committed after later ones had been claimed"
	keysTaken       = "jobs left out because another had their key"
	capReached      = "claims that filled a cap"
	resultsAwaited  = "results that Wait returned"
	jobsLeaders     = "leaders of job workers"
	jobsTakenBack   = "asynchronous enqueues that a crash took back"
)

// Conditions of runs of jobs.
const (
	LateEnqueues     Condition = "late enqueues"
	Cancellations    Condition = "cancellations"
	TerminalHandlers Condition = "terminal handlers"
	SnoozingHandlers Condition = "snoozing handlers"
	StoppedWorkers   Condition = "stopped workers"
	LostWorkers      Condition = "lost workers"
	CappedQueues     Condition = "capped queues"
	CutClaims        Condition = "cut claims"
	CutEnds          Condition = "cut ends"
	UnsafeEnqueues   Condition = "unsafe enqueues"
)

// jobStates are those of a run of jobs.
var jobStates = []state{
	{name: jobsCompleted},
	{name: jobsFailed, needs: []Condition{TerminalHandlers}},
	{name: jobsCancelled, needs: []Condition{Cancellations}},
	{name: jobsCancelledIn, needs: []Condition{Cancellations}},
	{name: jobsExpired},
	{name: runsRetried, needs: []Condition{FailingHandlers}},
	{name: runsSnoozed, needs: []Condition{SnoozingHandlers}},
	{name: runsReleased, needs: []Condition{StoppedWorkers}},
	{name: prefetchedBack, needs: []Condition{StoppedWorkers}},
	{name: runsLost, needs: []Condition{LostWorkers}},
	{name: prefetchedLost, needs: []Condition{LostWorkers}},
	{name: zombiesRefused, needs: []Condition{Zombies}},
	{name: claimsUnsent, needs: []Condition{CutClaims}},
	{name: claimsAdopted, needs: []Condition{CutClaims}},
	{name: endsUnsent, needs: []Condition{CutEnds}},
	{name: endsRepeated, needs: []Condition{CutEnds}},
	{name: commitsUnsent, needs: []Condition{WorkersLostAtCommit}},
	{name: commitsDoubted, needs: []Condition{WorkersLostAtCommit}},
	{name: committedLate, needs: []Condition{LateEnqueues}},
	{name: keysTaken},
	{name: capReached, needs: []Condition{CappedQueues}},
	{name: resultsAwaited, rare: true},
	{name: jobsLeaders},
	{name: jobsTakenBack, needs: []Condition{UnsafeEnqueues, ServerCrashes}, rare: true},
}

// jobPoints tell the states by where a worker of jobs was cut off.
var jobPoints = map[string]string{
	history.BeforeClaim: claimsUnsent, history.AfterClaim: claimsAdopted,
	history.BeforeEnd: endsUnsent, history.AfterEnd: endsRepeated,
	history.BeforeCommit: commitsUnsent, history.AfterCommit: commitsDoubted,
}

// jobsReached counts the states that a run of jobs went through.
func jobsReached(e *history.Evidence) (all []State) {
	j, counts := e.Jobs, map[string]int64{}
	b := newJobBooks(j)
	for _, x := range j.Finished {
		counts[jobsCompleted] += one(x.State == "completed")
		counts[jobsFailed] += one(x.State == "failed")
		counts[jobsCancelled] += one(x.State == "cancelled" && x.Worker == "")
		counts[jobsCancelledIn] += one(x.State == "cancelled" && x.CancelAsked && x.Worker != "")
		counts[jobsExpired] += one(x.State == "expired")
	}
	for _, a := range j.Attempts {
		counts[runsRetried] += one(a.Outcome == "error")
		counts[runsSnoozed] += one(a.Outcome == "snoozed")
		counts[runsReleased] += one(a.Outcome == "released")
		counts[prefetchedBack] += one(a.Outcome == "released" && a.StartedAt == nil)
		counts[runsLost] += one(a.Outcome == "lost" && a.StartedAt != nil)
		counts[prefetchedLost] += one(a.Outcome == "lost" && a.StartedAt == nil)
	}
	for _, t := range j.Told {
		counts[zombiesRefused] += one(t.Lost)
	}
	for _, c := range j.Claims {
		counts[capReached] += one(c.Cap != nil && c.Running == *c.Cap || c.All != nil && c.Total == *c.All)
	}
	counts[committedLate] = b.late()
	for _, q := range j.Enqueued {
		counts[keysTaken] += one(q.Existing && q.Outcome == history.EnqueueCommitted)
		counts[jobsTakenBack] += one(q.Outcome == history.EnqueueUnsure && b.tokens[q.Token] == 0)
	}
	counts[resultsAwaited] = int64(j.Waited)
	for _, r := range e.History.Records() {
		counts[jobsLeaders] += one(r.Kind == history.Leads)
		if about, ok := r.About.(history.Injection); ok && r.Kind == history.FaultInjected {
			counts[jobPoints[about.Where]]++
		}
	}
	for _, s := range jobStates {
		all = append(all, State{s.name, counts[s.name]})
	}
	return all
}

// late counts the jobs whose commit came after a later one of their lane had been
// claimed: only a claim from the bottom finds them.
func (b *jobBooks) late() (n int64) {
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
