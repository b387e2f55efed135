package oracle

import (
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// startSlack is how long a statement that starts a job may take, in seconds, after
// it has read the time.
const startSlack = 0.5

// inTime finds runs that began after their job was of no use any more.
func (b *jobLedgers) inTime() Finding {
	f := Finding{Name: "in time", Rule: "no run began after the job's GoodUntil"}
	check := func(id int64, started, until *float64) {
		if started != nil && until != nil {
			f.check(*started <= *until+b.slow(startSlack), func() string {
				return fmt.Sprintf("%s was good until %.3fs, and a run began at %.3fs", b.name(id), *until, *started)
			})
		}
	}
	for _, x := range b.Finished {
		check(x.ID, x.StartedAt, x.GoodUntil)
	}
	for _, a := range b.Attempts {
		check(a.ID, a.StartedAt, a.GoodUntil)
	}
	// What has expired proves it, too.
	for _, x := range b.Finished {
		if x.State == "expired" {
			f.check(x.Worker == "", func() string { return b.name(x.ID) + " expired while it ran" })
		}
	}
	return f
}

// caps finds claims that went over what an operator had set.
func (b *jobLedgers) caps() Finding {
	f := Finding{Name: "caps", Rule: "no claim brought a queue, or all together, over the cap that an operator had set a second before, nor took from a queue that was paused"}
	for _, c := range b.Claims {
		f.check(c.Cap == nil || c.Running <= *c.Cap, func() string {
			return fmt.Sprintf("at %.3fs %d jobs of %s were running, the cap was %d", c.At, c.Running, c.Queue, *c.Cap)
		})
		f.check(c.All == nil || c.Total <= *c.All, func() string {
			return fmt.Sprintf("at %.3fs %d jobs were running, the cap of all was %d", c.At, c.Total, *c.All)
		})
		f.check(!c.Paused, func() string { return fmt.Sprintf("at %.3fs jobs of %s were claimed, which was paused", c.At, c.Queue) })
	}
	return f
}

// A job that has been visible for overtakenAfter seconds may be overtaken for
// overtakenFor: workers poll from the bottom each second, a claim may be delayed on
// its way, and rows may be locked by a claim that is under way.
const (
	overtakenAfter = 4
	overtakenFor   = 4
)

// lane is where jobs are claimed in order.
type lane struct {
	queue    string
	priority int
}

// inTurn finds jobs that were passed over for too long.
func (b *jobLedgers) inTurn() Finding {
	f := Finding{Name: "in turn", Rule: fmt.Sprintf("no job that had been visible for %.1f s was overtaken for %.1f s by later ones of its queue and priority", b.slow(overtakenAfter), b.slow(overtakenFor))}
	committed := map[int64]float64{}
	for _, q := range b.Enqueued {
		if !q.Existing {
			committed[q.ID] = q.At
		}
	}
	waiting := map[lane]map[int64]*waiter{}
	claimed := b.byClaim()
	for _, s := range b.Steps {
		l := lane{s.Queue, s.Priority}
		if waiting[l] == nil {
			waiting[l] = map[int64]*waiter{}
		}
		delete(waiting[l], s.ID)
		if since, known := committed[s.ID]; known && s.State == "available" && !s.Bounded {
			waiting[l][s.ID] = &waiter{JobStep: s, since: max(since, s.At, s.RunAt)}
		}
		if s.State != "running" || s.Was != "available" {
			continue
		}
		o := b.overtaken(s, waiting[l], claimed[s.Claim])
		f.check(o == nil, func() string {
			return fmt.Sprintf("%s was claimed at %.3fs, before %s, which was due at %.3fs, visible since %.3fs and overtaken since %.3fs", b.name(s.ID), s.At, b.name(o.ID), o.RunAt, o.since, o.first)
		})
	}
	return f
}

// waiter is a job that is due.
type waiter struct {
	history.JobStep
	since float64 // it is visible
	first float64 // when it was overtaken first, 0: never
}

// byClaim are the jobs that each claim took.
func (b *jobLedgers) byClaim() map[int64]map[int64]bool {
	all := map[int64]map[int64]bool{}
	for _, s := range b.Steps {
		if s.State != "running" {
			continue
		}
		if all[s.Claim] == nil {
			all[s.Claim] = map[int64]bool{}
		}
		all[s.Claim][s.ID] = true
	}
	return all
}

// overtaken returns a job that a claim has left behind for too long, nil if there is
// none. It has not left behind what it took itself, a moment later.
func (b *jobLedgers) overtaken(claim history.JobStep, waiting map[int64]*waiter, taken map[int64]bool) (found *waiter) {
	for _, o := range waiting {
		if taken[o.ID] || o.since >= claim.At-b.slow(overtakenAfter) || o.RunAt > claim.RunAt || o.RunAt == claim.RunAt && o.ID > claim.ID {
			continue
		}
		if o.first == 0 {
			o.first = claim.At
		}
		if claim.At-o.first > b.slow(overtakenFor) && (found == nil || o.ID < found.ID) {
			found = o
		}
	}
	return found
}

// keys finds keys that two jobs had.
func (b *jobLedgers) keys() Finding {
	f := Finding{Name: "keys", Rule: "no two unfinished jobs had a key of Unique at once, and one job was enqueued under each key of Once"}
	holder := map[string]int64{}
	held := map[int64]string{}
	for _, s := range b.Steps {
		if key := held[s.ID]; key != "" && (s.Key != key || s.State == "") {
			delete(holder, key)
			delete(held, s.ID)
		}
		if s.Key == "" || s.State == "" {
			continue
		}
		other, taken := holder[s.Key]
		f.check(!taken || other == s.ID, func() string {
			return fmt.Sprintf("job %d and job %d had the key %q at once, at %.3fs", other, s.ID, s.Key, s.At)
		})
		holder[s.Key], held[s.ID] = s.ID, s.Key
	}
	under := map[string][]history.Enqueued{}
	for _, q := range b.Enqueued {
		if q.Once != "" && q.ID != 0 && q.Outcome == history.EnqueueCommitted {
			under[q.Once] = append(under[q.Once], q)
		}
	}
	for key, all := range under {
		inserted := 0
		for _, q := range all {
			inserted += int(one(!q.Existing))
			f.check(q.ID == all[0].ID || b.Forgetful, func() string {
				return fmt.Sprintf("under the key %q %s was given job %d, and %s job %d", key, all[0].Who, all[0].ID, q.Who, q.ID)
			})
		}
		f.check(inserted <= 1 || b.Forgetful, func() string { return fmt.Sprintf("under the key %q %d jobs were enqueued", key, inserted) })
	}
	return f
}

// cancelled finds jobs that went on after they were cancelled.
func (b *jobLedgers) cancelled() Finding {
	f := Finding{Name: "cancelled", Rule: "a job that was cancelled while it did not run is cancelled; one that ran ended with that run, or by it"}
	for _, c := range b.Cancels {
		x, over := b.finished[c.ID]
		if c.Was == "" || b.Forgetful {
			f.check(true, nil)
			continue
		}
		f.check(over, func() string { return fmt.Sprintf("%s was cancelled at %.3fs, and has not ended", b.name(c.ID), c.At) })
		if over && c.Was == "available" {
			f.check(x.State == "cancelled", func() string {
				return fmt.Sprintf("%s was cancelled at %.3fs before it ran, and is %s", b.name(c.ID), c.At, x.State)
			})
		}
		if !over || c.Was != "running" {
			continue
		}
		again := slices.ContainsFunc(b.steps[c.ID], func(s history.JobStep) bool {
			return s.State == "running" && s.Was == "available" && s.At > c.At+b.slow(clockSlack)
		})
		f.check(!again, func() string {
			return fmt.Sprintf("%s was cancelled at %.3fs while it ran, and ran again", b.name(c.ID), c.At)
		})
	}
	return f
}

// noneTaken finds jobs that were taken from a worker that lived. Where the machine did not
// keep up, its heartbeat may have been late.
func (b *jobLedgers) noneTaken() Finding {
	f := Finding{Name: "none taken", Rule: "no job was taken from a worker whose heartbeat was fresh, nor from one that nothing had happened to"}
	faulted := map[string]bool{}
	for _, w := range b.Workers {
		faulted[w.ID] = w.Faulted
		f.check(true, nil)
	}
	for _, r := range b.Resets {
		f.check(!r.Alive, func() string {
			return fmt.Sprintf("%s, attempt %d, was taken from %s, whose heartbeat was fresh", b.name(r.ID), r.Attempt, b.who(r.Worker))
		})
		late := slices.ContainsFunc(b.Slow, func(o history.Outage) bool { return o.From < r.At && r.At-b.DeadAfter < o.To })
		f.check(faulted[r.Worker] || late, func() string {
			return fmt.Sprintf("%s, attempt %d, was taken from %s, to which nothing had happened", b.name(r.ID), r.Attempt, b.who(r.Worker))
		})
	}
	return f
}

// asTold finds wrong reports of observers.
func (b *jobLedgers) asTold() Finding {
	f := Finding{Name: "as told", Rule: "what workers told of the end of a run is what the tables say, and they told it once"}
	told := map[runKey]int{}
	for _, t := range b.Told {
		k := runKey{t.ID, t.Attempt, t.Worker}
		told[k]++
		x, over := b.finished[t.ID]
		mine := over && x.Attempt == t.Attempt && x.Worker == t.Worker
		if b.Forgetful {
			f.check(true, nil) // a crash may have taken it back
			continue
		}
		f.check(told[k] == 1, func() string {
			return fmt.Sprintf("%s told of attempt %d of %s %d times", b.who(t.Worker), t.Attempt, b.name(t.ID), told[k])
		})
		switch {
		case t.Lost:
			f.check(!mine || x.Code == "WORKER_LOST", func() string {
				return fmt.Sprintf("%s told that it had lost %s, which its attempt %d has ended", b.who(t.Worker), b.name(t.ID), t.Attempt)
			})
		case t.State == "available":
			f.check(!mine, func() string {
				return fmt.Sprintf("%s told that %s is to run again, which its attempt %d has ended", b.who(t.Worker), b.name(t.ID), t.Attempt)
			})
		default:
			f.check(mine && x.State == t.State, func() string {
				return fmt.Sprintf("%s told that its attempt %d ended %s as %s, which was ended by attempt %d on %s", b.who(t.Worker), t.Attempt, b.name(t.ID), t.State, x.Attempt, b.who(x.Worker))
			})
		}
	}
	return f
}

// rest finds what still went on at the end.
func (b *jobLedgers) rest() Finding {
	r := b.Rest
	f := Finding{Name: "comes to rest", Rule: "soon after the last fault nothing was running, no job was due, consumers had handled all events, no tick was overdue, and all runs of flows had ended"}
	f.check(r.Running == 0, func() string { return fmt.Sprintf("%d jobs were still running after %.1fs", r.Running, r.Took) })
	f.check(r.Due == 0, func() string { return fmt.Sprintf("%d jobs were still due after %.1fs", r.Due, r.Took) })
	f.check(r.Behind == 0, func() string { return fmt.Sprintf("consumers were %d positions behind after %.1fs", r.Behind, r.Took) })
	f.check(r.Overdue == 0, func() string {
		return fmt.Sprintf("the next tick of %d schedules was overdue after %.1fs", r.Overdue, r.Took)
	})
	f.check(r.Flows == 0, func() string { return fmt.Sprintf("%d runs of flows had not ended after %.1fs", r.Flows, r.Took) })
	for _, u := range b.Left {
		f.check(u.State != "running", func() string {
			return fmt.Sprintf("%s runs on %s, attempt %d, after all workers were stopped", b.name(u.ID), b.who(u.Worker), u.Attempt)
		})
	}
	f.check(r.Took <= r.Bound, func() string { return fmt.Sprintf("it took %.1fs, the bound is %.0fs", r.Took, r.Bound) })
	return f
}

// rescued finds jobs of crashed workers that waited for too long. An outage of the
// server stops everything: the time counts from its end.
func (b *jobLedgers) rescued() Finding {
	f := Finding{Name: "rescued", Rule: fmt.Sprintf("the jobs of a worker that crashed were given to others within %.1fs", b.RescueBound)}
	gone := map[string]float64{}
	for _, w := range b.Workers {
		gone[w.ID] = w.GoneAt
		f.check(true, nil)
	}
	for _, r := range b.Resets {
		at := gone[r.Worker]
		if at == 0 {
			continue
		}
		at = max(at, b.claimed(r.ID, r.Attempt))
		for _, o := range b.Outages {
			if o.From < r.At && at < o.To {
				at = min(o.To, r.At)
			}
		}
		f.check(r.At-at <= b.RescueBound, func() string {
			return fmt.Sprintf("%s, attempt %d, was given back at %.3fs, its worker %s was gone since %.3fs, and the server was well since %.3fs", b.name(r.ID), r.Attempt, r.At, b.who(r.Worker), gone[r.Worker], at)
		})
	}
	return f
}

// claimed is when an attempt of a job began.
func (b *jobLedgers) claimed(id int64, attempt int) (at float64) {
	for _, s := range b.steps[id] {
		if s.State == "running" && s.Attempt == attempt {
			at = s.At
		}
	}
	return at
}
