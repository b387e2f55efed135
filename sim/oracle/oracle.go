// Package oracle judges the records of tested workers: nothing lost, nothing applied twice, nothing
// out of order, every skipped position audited. It needs only the evidence, no worker and no
// database, and says the same of the same evidence each time.
package oracle

import (
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// Judge checks every invariant.
func Judge(e *history.Evidence) []Finding {
	all := judgeAll(e)
	if len(e.Failures) > 0 {
		all = append(all, calls(e))
	}
	return all
}

func judgeAll(e *history.Evidence) []Finding {
	if e.Jobs != nil {
		return judgeJobs(e)
	}
	e = afterCrashes(e)
	units := e
	e = inRanges(e)
	all := []Finding{
		exactlyOnce(e),
		nothingElse(e),
		order(e),
		effects(e),
		ownership(e),
		assigned(e),
		leadership(e),
		undecided(e),
		audit(e),
		forwards(e),
		rest(e),
		lives(e),
	}
	if len(e.Proofs) > 0 {
		all = append(all, receipts(e))
	}
	if e != units {
		all = append(all, partitions(units))
	}
	if len(e.Selected) > 0 {
		all = append(all, builds(e))
	}
	if e.Unread { // without the operations nobody knows the epochs of ranges
		all = provable(e, all, "order", "effects", "forwards", "assigned", "leadership", "builds")
	}
	return provable(e, all, "audit", "comes to rest")
}

// provable leaves out, of incomplete evidence, the invariants that only complete
// evidence can judge: what is missing may just not have been done, or read, yet. The
// other invariants leave out such checks themselves.
func provable(e *history.Evidence, all []Finding, complete ...string) []Finding {
	if !e.Incomplete {
		return all
	}
	return slices.DeleteFunc(all, func(f Finding) bool { return slices.Contains(complete, f.Name) })
}

// rest finds consumers that did not come to rest at the head.
func rest(e *history.Evidence) Finding {
	r := e.Rest
	f := Finding{Name: "comes to rest", Rule: "soon after the last fault every checkpoint was at the head and nothing in doubt"}
	for _, c := range e.Consumers {
		i := slices.IndexFunc(r.Standings, func(s history.Standing) bool { return s.Consumer == c.Name })
		f.check(i >= 0, func() string { return fmt.Sprintf("%s has no checkpoint", c.Name) })
		if i < 0 {
			continue
		}
		s := r.Standings[i]
		f.check(s.Checkpoint == r.Head, func() string {
			return fmt.Sprintf("%s stands at %d, the head is %d, after %v", c.Name, s.Checkpoint, r.Head, r.Took)
		})
		f.check(len(s.Open) == 0, func() string {
			return fmt.Sprintf("%s still has %d ranges in doubt, the first is [%d, %d], after %v", c.Name, len(s.Open), s.Open[0].First, s.Open[0].Last, r.Took)
		})
	}
	f.check(r.Took <= r.Bound, func() string { return fmt.Sprintf("it took %v, the bound is %v", r.Took, r.Bound) })
	return f
}

// receipts finds consumers that their own receipts do not prove.
func receipts(e *history.Evidence) Finding {
	f := Finding{Name: "receipts", Rule: "the receipts of each consumer prove that it has handled each event of the log once"}
	for _, p := range e.Proofs {
		applied := slices.ContainsFunc(e.Ledger, func(x history.Entry) bool { return x.Consumer == p.Consumer })
		f.check(p.Events > 0 || !applied || len(p.Unproven) > 0, func() string { return fmt.Sprintf("the receipts of %s prove nothing", p.Consumer) })
		for _, what := range p.Unproven {
			f.check(false, func() string { return fmt.Sprintf("%s, %s", p.Consumer, what) })
		}
	}
	return f
}

// lives finds workers that ended unasked, or that did not end when asked.
func lives(e *history.Evidence) Finding {
	f := Finding{Name: "life cycle", Rule: "workers end when they are told to, in time, and then without an error; what they set in a session ends with their transaction"}
	for range e.Sound {
		f.check(true, nil)
	}
	for _, what := range e.Unsound {
		f.check(false, func() string { return what })
	}
	for _, x := range e.Exits {
		if e.Incomplete && x.Asked == history.ExitStopped {
			continue // it may not have started yet, or have no server any more
		}
		f.check(x.InTime, func() string {
			return fmt.Sprintf("%s was %s and had not ended after %v", x.Worker, x.Asked, x.Bound)
		})
		switch x.Asked {
		case history.ExitCrashed, history.ExitSlow, history.ExitOutage, history.ExitBroke: // whatever it says
		case history.ExitLost:
			f.check(e.Harness != nil, func() string {
				return fmt.Sprintf("%s ended by itself, though there was a server: %v", x.Worker, x.Error)
			})
		case history.ExitStopped:
			f.check(x.Error == "", func() string { return fmt.Sprintf("%s was stopped and returned: %v", x.Worker, x.Error) })
		default:
			f.check(false, func() string { return fmt.Sprintf("%s ended by itself: %v", x.Worker, x.Error) })
		}
	}
	if !e.Incomplete {
		f.ended(e)
	}
	return f
}

// judgeJobs checks every invariant of a run of jobs.
func judgeJobs(e *history.Evidence) []Finding {
	b := newJobLedgers(e.Jobs)
	if e.Unread {
		return []Finding{b.misled(), lives(e)}
	}
	all := []Finding{
		b.noneLost(),
		b.noneElse(e.Incomplete),
		b.endedOnce(),
		b.askedOnce(),
		b.effectsOnce(),
		b.doneIsDone(),
		b.lastClaim(),
		b.addsUp(),
		b.inTime(),
		b.caps(),
		b.inTurn(),
		b.keys(),
		b.cancelled(),
		b.noneTaken(),
		b.rescued(),
		b.asTold(),
		b.ticksOnce(),
		b.pauses(),
		b.times(),
		b.stepsOnce(),
		b.notBefore(),
		b.joins(),
		b.runsEnd(),
		b.rest(),
		lives(e),
	}
	if b.Emitted.Workers == 0 {
		all = slices.DeleteFunc(all, func(f Finding) bool { return f.Name == askedOnce })
	}
	return provable(e, all, "no job lost", askedOnce, "cancelled", "joins", "runs end", "comes to rest")
}
