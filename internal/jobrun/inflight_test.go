package jobrun_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
)

type run struct{ jobrun.Run }

func newRun(id, claim int64) *run {
	return &run{jobrun.Run{Claim: queue.Run{ID: id, Claim: claim}}}
}

// The newest run of a job has it. A run whose context is to end ends as soon as it has one.
func TestInFlightOfOneJob(t *testing.T) {
	t.Parallel()
	set := jobrun.InFlight[*run]{Lost: errBoom}
	older, newer, last := newRun(1, 1), newRun(1, 2), newRun(1, 3)
	set.Add(older)
	set.Add(newer)
	ctx, cancel := context.WithCancelCause(t.Context())
	older.Begin(cancel)
	if context.Cause(ctx) != errBoom || older.Settle() != errBoom || newer.Settle() != nil {
		t.Errorf("the older run ends with %v", context.Cause(ctx))
	}
	set.Drop(older)
	if set.Has(older) || !set.Has(newer) || len(set.All()) != 1 {
		t.Errorf("%d runs are left", len(set.All()))
	}
	set.Add(last)
	last.End(errEnded)
	if last.End(errBoom); newer.Settle() != errBoom || last.Phase() != jobrun.Claimed || last.Settle() != errEnded {
		t.Errorf("the second run ends with %v, the third with %v", newer.Settle(), last.Settle())
	}
}

// A run holds its slot from its call until its handler returns, also after it was given up.
func TestInFlightSlots(t *testing.T) {
	t.Parallel()
	var set jobrun.InFlight[*run]
	first, second, early := newRun(1, 1), newRun(2, 1), newRun(3, 1)
	now := time.Now()
	for i, r := range []*run{first, second, early} {
		set.Add(r)
		r.Call(now.Add(time.Duration(-i) * time.Second))
	}
	check := func(what string, called int, overdue ...*run) {
		t.Helper()
		got := set.Overdue()
		n, since := set.OverdueOf(func(*run) bool { return true })
		if len(set.Holding()) != called+len(overdue) || len(got) != len(overdue) || n != len(got) || n > 0 && !since.Equal(got[0].Since()) {
			t.Fatalf("%s: %d hold slots, and %d are overdue, %d since %v", what, len(set.Holding()), len(got), n, since)
		}
		for i, r := range overdue {
			if got[i] != r {
				t.Errorf("%s: overdue is %d in place %d", what, got[i].Claim.ID, i)
			}
		}
	}
	check("at first", 3)
	if got := set.Holding(); got[0] != early || got[2] != first || !set.Busy(func(r *run) bool { return r == first }) || set.Busy(func(*run) bool { return false }) {
		t.Errorf("the longest is %d", got[0].Claim.ID)
	}
	set.GiveUp(first)
	set.GiveUp(second)
	check("given up", 1, second, first)
	second.Settle()
	set.Drop(second)
	check("settled", 1, second, first)
	set.Returned(second)
	check("returned", 1, first)
	set.Returned(early) // before GiveUp
	set.GiveUp(early)
	if early.Settle(); !early.GaveUp() {
		t.Error("it was not given up")
	}
	check("returned first", 0, first)
}
