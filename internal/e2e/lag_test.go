package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
)

// lags reports whether a lag is known and has a value.
func lags(lag *int64, want int64) bool { return lag != nil && *lag == want }

// Each consumer has a lag in the worker that runs it, and in no other: what
// another worker has handled is not known there, and would grow for ever.
func TestLagIsKnownWhereAConsumerRuns(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 5)
	names := []string{"a", "b"}
	consumers := []consumer.Consumer{&ledger{name: "a"}, &ledger{name: "b"}}
	one, two := start(t, d.DB, consumers), start(t, d.DB, consumers)
	sharedOut := func() bool {
		for _, w := range []*running{one, two} {
			if a, b := statusOf(w.Worker, "a"), statusOf(w.Worker, "b"); a.Assigned == b.Assigned {
				return false
			}
		}
		return true
	}
	await(t, "each worker to have a consumer", sharedOut)
	appendN(t, d.DB, "Order", "2", 100)
	for _, w := range []*running{one, two} {
		await(t, "a worker to have caught up with its consumer", func() bool {
			for _, name := range names {
				if s := statusOf(w.Worker, name); s.Assigned {
					return s.Position == 105 && lags(s.Lag, 0) && lags(s.HeadLag, 0)
				}
			}
			return false
		})
		for _, name := range names {
			if s := statusOf(w.Worker, name); !s.Assigned && (s.Lag != nil || s.HeadLag != nil) {
				t.Errorf("a worker that does not run %s knows its lag: %+v", name, s)
			}
		}
	}
	two.Stop()
	if err := two.result(t); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if s := statusOf(two.Worker, name); s.Lag != nil || s.HeadLag != nil {
			t.Errorf("a worker that has stopped knows the lag of %s: %+v", name, s)
		}
		await(t, "the worker that is left to know both lags", func() bool {
			s := statusOf(one.Worker, name)
			return lags(s.Lag, 0) && lags(s.HeadLag, 0)
		})
	}
}

// The lag to the head shows what an open transaction holds back, also when
// that is more than the frontier reads at once; operators see the same.
func TestLagToTheHead(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithGapPolicy(worker.GapWait), worker.WithStaleGapThreshold(stale))
	awaitHandled(t, d.DB, "c", upTo(3)...)
	open := beginAppend(t, d.DB, "Order", "slow", 1) // 4
	behind := int64(1)
	for _, n := range []int{1, 1_000, 1_000, 1_000, 1, 1, 1, 1} { // more than fences and one read have room for
		appendN(t, d.DB, "Order", "2", n)
		behind += int64(n)
		await(t, fmt.Sprintf("the lag to the head to be %d", behind), func() bool {
			s := statusOf(w.Worker, "c")
			return lags(s.Lag, 0) && lags(s.HeadLag, behind)
		})
		await(t, "the frontier to be held back", func() bool { return len(w.Status().Blocked) == 1 })
	}
	if s := w.Status(); s.Safe != 3 || s.Head != 3+behind {
		t.Errorf("safe is %d and the head %d, want 3 and %d", s.Safe, s.Head, 3+behind)
	}
	all, err := operator(t, d).Consumers(t.Context())
	if err != nil || len(all) != 1 || all[0].HeadLag != behind {
		t.Errorf("operators see %+v (%v), want a lag of %d", all, err, behind)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	await(t, "everything to be handled", func() bool {
		s := statusOf(w.Worker, "c")
		return s.Position == 3+behind && lags(s.Lag, 0) && lags(s.HeadLag, 0)
	})
	d.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 10`)
	await(t, "the lag to stay, and the read to age, while the log cannot be read", func() bool {
		s := w.Status()
		return s.FrontierError != nil && lags(s.Consumers[0].HeadLag, 0) && time.Since(s.LastRead) > time.Second
	})
}
