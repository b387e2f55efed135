package oracle

import (
	"cmp"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

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
		t, _ := r.About.(history.Transaction)
		counts[nativeCommits] += one(t.Native && r.Kind == history.Committed)
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

// ranTo reports whether the run that ended a job had the outcome.
func (b *jobLedgers) ranTo(x history.Finished, outcome string) bool {
	return slices.ContainsFunc(b.runs[runKey{x.ID, x.Attempt, x.Worker}], func(r history.JobRun) bool { return r.Outcome == outcome })
}

// countRuns counts the outcomes of runs that did not end their job.
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

// countEnqueued counts what became of enqueued jobs, and of consumers that enqueue.
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

// adopted counts the runs of the claim whose answer a worker lost at a time: the worker's last
// claim before that. The runs began afterwards.
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

// countFlows counts what became of runs of flows.
func (b *jobLedgers) countFlows(counts map[string]int64) {
	for _, r := range b.flowLedgers() {
		told := map[string]map[stepAt]bool{} // ends, by transactions
		r.read(func(c history.FlowChange) {
			at := stepAt{c.Step, c.Item}
			switch {
			case c.Flow != "":
				counts[flowsRetried] += one(c.Was != "" && c.Was != running && c.State == running)
			case c.Was == "enqueued" && c.State != "":
				if told[c.Tx] == nil {
					told[c.Tx] = map[stepAt]bool{}
				}
				told[c.Tx][at] = true
				x := r.finished[c.Job]
				counts[endsSwept] += one(x.Worker != "" && c.Who != "sim "+r.who(x.Worker) && c.Who != "sim harness")
				counts[stepsUnneeded] += one(x.Code == "SKIPPED")
			case c.State == "skipped":
				counts[stepsSkipped]++
			case c.Was == "ready" && c.State == "completed":
				counts[listsOfNone]++
			case c.State == "spread" && c.Was == "ready":
				counts[listsSpread]++
			case enqueues(c) && c.Item == 0 && len(r.Steps[c.Step].After) > 1:
				counts[flowJoins]++
				n := 0
				for _, e := range r.Steps[c.Step].After {
					n += int(one(told[c.Tx][stepAt{e.Step, 0}]))
				}
				counts[joinsAtOnce] += one(n > 1)
			}
		})
		counts[flowsCompleted] += one(r.state == "completed")
		counts[flowsFailed] += one(r.state == "failed")
		counts[flowsCancelled] += one(r.state == "cancelled")
	}
}
