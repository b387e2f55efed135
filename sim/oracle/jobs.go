package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

const askedOnce = "asked once"

// runKey names a run. The runs of a job differ in the attempt, or in the worker if a crash took an
// attempt back.
type runKey struct {
	id      int64
	attempt int
	worker  string
}

// jobLedgers is the evidence of jobs, by the keys of its lookups.
type jobLedgers struct {
	*history.Jobs
	finished map[int64]history.Finished
	left     map[int64]history.Unfinished
	byToken  map[string]history.Enqueued
	tokens   map[string]int // jobs in the tables that have it
	wanted   map[string]int // enqueued with it
	runs     map[runKey][]history.JobRun
	effects  map[int64][]history.Effect
	attempts map[int64][]history.JobAttempt
	steps    map[int64][]history.JobStep
	cancels  map[int64][]history.Cancel
	claimers map[int64]string // names of the workers, by their claims
}

func newJobLedgers(j *history.Jobs) *jobLedgers {
	b := &jobLedgers{
		Jobs: j, finished: map[int64]history.Finished{}, left: map[int64]history.Unfinished{}, byToken: map[string]history.Enqueued{},
		tokens: map[string]int{}, wanted: map[string]int{}, runs: map[runKey][]history.JobRun{}, effects: map[int64][]history.Effect{},
		attempts: map[int64][]history.JobAttempt{}, steps: map[int64][]history.JobStep{}, cancels: map[int64][]history.Cancel{},
		claimers: map[int64]string{},
	}
	for _, f := range j.Finished {
		b.finished[f.ID] = f
		b.tokens[f.Token]++
		b.claimers[f.Claim] = b.who(f.Worker)
	}
	for _, u := range j.Left {
		b.left[u.ID] = u
		b.tokens[u.Token]++
	}
	for _, q := range j.Enqueued {
		b.wanted[q.Token] += int(one(!q.Existing && q.Outcome != history.EnqueueRolledBack))
		if before, known := b.byToken[q.Token]; !known || weight(q) >= weight(before) {
			b.byToken[q.Token] = q
		}
	}
	for _, r := range j.Runs {
		k := runKey{r.ID, r.Attempt, r.Worker}
		b.runs[k] = append(b.runs[k], r)
	}
	for _, x := range j.Effects {
		b.effects[x.ID] = append(b.effects[x.ID], x)
	}
	for _, a := range j.Attempts {
		b.attempts[a.ID] = append(b.attempts[a.ID], a)
		b.claimers[a.Claim] = b.who(a.Worker)
	}
	for _, s := range j.Steps {
		b.steps[s.ID] = append(b.steps[s.ID], s)
	}
	for _, c := range j.Cancels {
		b.cancels[c.ID] = append(b.cancels[c.ID], c)
	}
	return b
}

// weight orders the entries with one token, such as those with a key of Once. The entry counts that
// is known to be enqueued, or else one that may be.
func weight(q history.Enqueued) int {
	switch {
	case q.Existing:
		return 0
	case q.Outcome == history.EnqueueRolledBack:
		return 1
	case q.Outcome == history.EnqueueUnsure:
		return 2
	}
	return 3
}

// name names a job for people.
func (b *jobLedgers) name(id int64) string {
	if f, ok := b.finished[id]; ok {
		return fmt.Sprintf("job %d (%s %s, of %s, %s)", id, f.Kind, f.Token, f.Queue, f.State)
	}
	if u, ok := b.left[id]; ok {
		return fmt.Sprintf("job %d (%s %s, of %s, %s)", id, u.Kind, u.Token, u.Queue, u.State)
	}
	return fmt.Sprintf("job %d", id)
}

// noneLost finds jobs that were committed and have not ended, though nothing is in
// the way.
func (b *jobLedgers) noneLost() Finding {
	f := Finding{Name: "no job lost", Rule: "every job that was committed has ended, or is not due yet"}
	for _, q := range b.Enqueued {
		if q.Outcome != history.EnqueueCommitted || q.Existing {
			continue
		}
		n := b.tokens[q.Token]
		f.check(n > 0, func() string {
			return fmt.Sprintf("%s committed %s %s as job %d, and there is no such job", q.Who, q.Kind, q.Token, q.ID)
		})
	}
	for _, u := range b.Left {
		f.check(u.DueIn > 0 || u.Expired, func() string {
			return fmt.Sprintf("%s was due for %.1fs and has not ended, after %d attempts", b.name(u.ID), -u.DueIn, u.Attempt)
		})
	}
	return f
}

// misled finds answers of the library that were wrong.
func (b *jobLedgers) misled() Finding {
	f := Finding{Name: "nothing else", Rule: "no other job exists, and none ran that was rolled back"}
	for _, what := range b.Misled {
		f.check(false, func() string { return what })
	}
	return f
}

// noneElse finds jobs that nobody has enqueued, or that were rolled back. An enqueuer
// that failed has not recorded its last transaction: then the ledgers are incomplete.
func (b *jobLedgers) noneElse(incomplete bool) Finding {
	f := b.misled()
	if incomplete {
		return f
	}
	for _, token := range slices.Sorted(maps.Keys(b.tokens)) {
		q, known := b.byToken[token]
		f.check(known && q.Outcome != history.EnqueueRolledBack && !q.Existing, func() string {
			return fmt.Sprintf("%s is in the tables, and its enqueuer says %q", token, outcomeOf(q, known))
		})
		f.check(b.tokens[token] <= b.wanted[token], func() string {
			return fmt.Sprintf("%s is in the tables %d times, and was enqueued %d times", token, b.tokens[token], b.wanted[token])
		})
	}
	for _, r := range b.Runs {
		q, known := b.byToken[r.Token]
		f.check(known && q.Outcome != history.EnqueueRolledBack && !q.Existing, func() string {
			return fmt.Sprintf("%s ran on %s, and its enqueuer says %q", r.Token, r.Name, outcomeOf(q, known))
		})
	}
	return f
}

// askedOnce finds jobs that consumers enqueued twice, or not.
func (b *jobLedgers) askedOnce() Finding {
	f := Finding{Name: askedOnce, Rule: "consumers have enqueued each job once that a committed event asks for, however often they handled it"}
	for _, q := range b.Enqueued {
		if !q.Asked {
			continue
		}
		n, most := b.tokens[q.Token], b.wanted[q.Token]
		least := int(one(q.Outcome == history.EnqueueCommitted))
		f.check(least <= n && n <= most, func() string {
			return fmt.Sprintf("an event of %s, %s, asks for %s %s, of which there are %d, at most %d wanted", q.Who, q.Outcome, q.Kind, q.Token, n, most)
		})
	}
	return f
}

func outcomeOf(q history.Enqueued, known bool) string {
	switch {
	case !known:
		return "never enqueued"
	case q.Existing:
		return "another job had its key"
	}
	return q.Outcome
}

// endedOnce finds jobs that are both finished and unfinished, and ends without a
// job.
func (b *jobLedgers) endedOnce() Finding {
	f := Finding{Name: "ended once", Rule: "each job ended once: it left the table once, for the one of finished jobs"}
	for _, x := range b.Finished {
		_, both := b.left[x.ID]
		f.check(!both, func() string { return b.name(x.ID) + " is in both tables" })
		ends := 0
		for _, s := range b.steps[x.ID] {
			ends += int(one(s.State == ""))
		}
		f.check(ends == 1, func() string { return fmt.Sprintf("%s left the table %d times", b.name(x.ID), ends) })
	}
	return f
}

// kinds whose handlers write an effect in the transaction that completes the job.
var withEffect = []string{"tx", "batchtx", "complete"}

// effectsOnce finds effects that came without the end of their job, or twice.
func (b *jobLedgers) effectsOnce() Finding {
	f := Finding{Name: "effects once", Rule: "what a handler wrote in the transaction of a job's completion is there once if that job completed, else not; it is the run's that completed it"}
	for _, x := range b.Finished {
		if !slices.Contains(withEffect, x.Kind) {
			continue
		}
		all := b.effects[x.ID]
		want := int(one(x.State == "completed"))
		f.check(len(all) == want, func() string {
			return fmt.Sprintf("%s has %d effects, %d wanted: %+v", b.name(x.ID), len(all), want, all)
		})
		if want == 1 && len(all) == 1 {
			f.check(all[0].Attempt == x.Attempt && all[0].Worker == x.Worker && all[0].Token == x.Token, func() string {
				return fmt.Sprintf("%s was completed by attempt %d on %s, its effect is of attempt %d on %s", b.name(x.ID), x.Attempt, b.who(x.Worker), all[0].Attempt, b.who(all[0].Worker))
			})
		}
	}
	for _, u := range b.Left {
		f.check(len(b.effects[u.ID]) == 0, func() string {
			return fmt.Sprintf("%s has not ended, and has %d effects", b.name(u.ID), len(b.effects[u.ID]))
		})
	}
	return f
}

func (b *jobLedgers) who(id string) string {
	for _, w := range b.Workers {
		if w.ID == id {
			return w.Name
		}
	}
	return "worker " + id
}

// clockSlack is by how much the clocks of the ledgers and of the database may differ,
// and an answer may take.
const clockSlack = 0.15

// slow is how long the machine takes for what the reference does in some seconds.
func (b *jobLedgers) slow(seconds float64) float64 { return seconds * max(b.Slowness, 1) }

// doneIsDone finds jobs that ended as no run of theirs did.
func (b *jobLedgers) doneIsDone() Finding {
	f := Finding{Name: "done is done", Rule: "a job completed because the handler of the run that ended it had returned nil, and has the result that it set; the other ends have their reasons"}
	for _, x := range b.Finished {
		runs := b.runs[runKey{x.ID, x.Attempt, x.Worker}]
		had := func(outcomes ...string) bool {
			return slices.ContainsFunc(runs, func(r history.JobRun) bool {
				return slices.Contains(outcomes, r.Outcome) && r.Ended <= x.FinishedAt+b.slow(clockSlack)
			})
		}
		switch x.State {
		case "completed":
			// A handler that commits by itself may still wait for the answer.
			ok := x.Kind == "complete" && len(runs) > 0 || had(history.RunOK)
			f.check(ok, func() string {
				return fmt.Sprintf("%s was completed by attempt %d on %s, whose handler had not returned nil at %.3fs: %s", b.name(x.ID), x.Attempt, b.who(x.Worker), x.FinishedAt, said(runs))
			})
			want := ""
			if x.Kind == "plain" || x.Kind == "tx" {
				want = resultOf(x)
			}
			f.check(x.Result == want || x.Kind == "list", func() string { return fmt.Sprintf("%s has the result %q, %q was set", b.name(x.ID), x.Result, want) })
		case "failed":
			f.check(x.Failures >= cmp.Or(x.MaxAttempts, b.MaxAttempts) || had(history.RunTerminal) || x.Resets >= x.MaxResets, func() string {
				return fmt.Sprintf("%s failed after %d failures and %d resets (%s), and its last run said: %s", b.name(x.ID), x.Failures, x.Resets, x.Code, said(runs))
			})
		case "cancelled":
			f.check(len(b.cancels[x.ID]) > 0 || had(history.RunDiscarded), func() string {
				return fmt.Sprintf("%s was cancelled, nobody asked for it, and its last run said: %s", b.name(x.ID), said(runs))
			})
		case "expired":
			f.check(x.GoodUntil != nil && *x.GoodUntil <= x.FinishedAt, func() string { return b.name(x.ID) + " expired before its time" })
		default:
			f.check(false, func() string { return fmt.Sprintf("%s has ended as %q", b.name(x.ID), x.State) })
		}
	}
	for range b.Waited {
		f.check(true, nil)
	}
	return f
}

// resultOf is the result that handlers set, as the database prints it.
func resultOf(x history.Finished) string { return fmt.Sprintf("%q", x.Token) }

func said(runs []history.JobRun) string {
	if len(runs) == 0 {
		return "nothing, it did not begin"
	}
	text := ""
	for i, r := range runs {
		if i > 0 {
			text += ", "
		}
		if r.Outcome == "" {
			text += fmt.Sprintf("nothing, since it began at %.3fs", r.Began)
		} else {
			text += fmt.Sprintf("%s at %.3fs", r.Outcome, r.Ended)
		}
	}
	return text
}

// lastClaim finds jobs that were ended by another claim than the last one, or while
// they did not run.
func (b *jobLedgers) lastClaim() Finding {
	f := Finding{Name: "last claim", Rule: "a worker that ended a run had the last claim of its job, which was running"}
	for _, x := range b.Finished {
		steps := b.steps[x.ID]
		if len(steps) == 0 {
			continue
		}
		var last history.JobStep
		for _, s := range steps {
			if s.State == "running" {
				last = s
			}
		}
		end := steps[len(steps)-1]
		if x.Worker == "" {
			f.check(end.Was != "running", func() string { return b.name(x.ID) + " was running, and ended without a run" })
			continue
		}
		f.check(end.Was == "running" && last.Claim == x.Claim && last.Attempt == x.Attempt, func() string {
			return fmt.Sprintf("%s was ended by claim %d (attempt %d) while it was %q; the last claim was %d (attempt %d)", b.name(x.ID), x.Claim, x.Attempt, end.Was, last.Claim, last.Attempt)
		})
	}
	return f
}

// addsUp finds counters that differ from what the attempts say.
func (b *jobLedgers) addsUp() Finding {
	f := Finding{Name: "adds up", Rule: "attempts, failures and resets of each finished job are those of its runs; what was claimed and not started is no reset"}
	for _, x := range b.Finished {
		all := b.attempts[x.ID]
		before := x.Attempt - int(one(x.Worker != ""))
		seen := map[int]bool{}
		failures, resets, atMost := 0, 0, 0
		for _, a := range all {
			seen[a.Attempt] = true
			switch {
			case a.Outcome == "lost":
				resets += int(one(a.StartedAt != nil))
			case a.Outcome == "error" && a.Code == "CONNECTION":
				atMost++ // a reset, if the database answered to others
			case a.Outcome == "error":
				failures++
			}
		}
		f.check(len(all) == before && len(seen) == before, func() string {
			return fmt.Sprintf("%s was claimed %d times, and has %d rows of attempts that did not end it, %d wanted", b.name(x.ID), x.Attempt, len(all), before)
		})
		byRun := x.State == "failed" && x.Code != "WORKER_LOST" && x.Code != "CONNECTION"
		f.check(x.Failures == failures+int(one(byRun)), func() string {
			return fmt.Sprintf("%s has %d failures, its attempts say %d (code %s)", b.name(x.ID), x.Failures, failures+int(one(byRun)), x.Code)
		})
		f.check(resets <= x.Resets && x.Resets <= resets+atMost, func() string {
			return fmt.Sprintf("%s has %d resets, its attempts say %d, and %d lost connections", b.name(x.ID), x.Resets, resets, atMost)
		})
	}
	return f
}
