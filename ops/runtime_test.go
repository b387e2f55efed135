package ops_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// failing returns a consumer that cannot handle the aggregate "bad" until fixed is set.
func failing() (c *ledger, fixed *atomic.Bool) {
	fixed = new(atomic.Bool)
	return &ledger{before: func(e store.PersistedEvent) error {
		if e.AggregateID == "bad" && !fixed.Load() {
			return errors.New("cannot handle this")
		}
		return nil
	}}, fixed
}

// policy makes a worker give up at the first failure. The worker polls so rarely that only a
// notification can wake it.
func policy(p worker.FailurePolicy) []worker.Option {
	return []worker.Option{worker.WithFailurePolicy(p), worker.WithMaxConsecutiveFailures(1), worker.WithPollInterval(time.Hour), worker.WithMaxPollInterval(time.Hour)}
}

// A paused consumer does not move until it is resumed.
func TestPauseStopsConsumer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 2)
	s.work(t, &ledger{}, worker.WithPollInterval(time.Hour), worker.WithMaxPollInterval(time.Hour))
	s.awaitHandled(t, "1 2")
	if err := s.Pause(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	s.append(t, "a", 2)
	s.awaitSettled(t, 4) // the worker has long seen the events
	if got := s.handled(t); got != "1 2" {
		t.Fatalf("while paused, handled %s", got)
	}
	if err := s.Resume(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	s.awaitHandled(t, "1 2 3 4")
}

// A consumer that has paused itself at a failing event continues without the event, or with it
// once it can.
func TestResumeAfterWorkerPaused(t *testing.T) {
	t.Parallel()
	for name, skip := range map[string]bool{"skip": true, "mend": false} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c, fixed := failing()
			s.append(t, "a", 2)   // 1, 2
			s.append(t, "bad", 1) // 3
			s.append(t, "a", 1)   // 4
			s.work(t, c, policy(worker.FailPause)...)
			paused := func() *ops.Pause {
				all, err := s.Consumers(t.Context())
				if err != nil || len(all) != 1 {
					return nil
				}
				return all[0].Paused
			}
			await(t, "the worker to pause the consumer", func() bool { return paused() != nil })
			want := "1 2 3 4"
			if skip {
				want = "1 2 4"
				if err := s.SkipEvent(t.Context(), "c", 3, by); err != nil {
					t.Fatal(err)
				}
			}
			fixed.Store(true)
			if err := s.Resume(t.Context(), "c", by); err != nil {
				t.Fatal(err)
			}
			s.awaitHandled(t, want)
		})
	}
}

// A retry handles dead letters in order. A discard unblocks their aggregate. A reset below them
// delivers their events again.
func TestDeadLettersOfAWorker(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		operate func(s site, fixed *atomic.Bool) error
		want    string
	}{
		"retry": {want: "1 4 2 3 5", operate: func(s site, fixed *atomic.Bool) error {
			fixed.Store(true)
			return s.RetryDeadLetters(t.Context(), "c", 3, by)
		}},
		"discard": {want: "1 4 5", operate: func(s site, fixed *atomic.Bool) error {
			fixed.Store(true)
			return errors.Join(s.DiscardDeadLetter(t.Context(), "c", 2, by), s.DiscardDeadLetter(t.Context(), "c", 3, by))
		}},
		"reset": {want: "1 4 2 3 4 5", operate: func(s site, fixed *atomic.Bool) error {
			fixed.Store(true)
			return s.Reset(t.Context(), "c", 1, by)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c, fixed := failing()
			s.append(t, "a", 1)   // 1
			s.append(t, "bad", 2) // 2, 3
			s.append(t, "a", 1)   // 4
			s.work(t, c, policy(worker.FailDeadLetter)...)
			s.awaitHandled(t, "1 4")
			await(t, "two dead letters", func() bool {
				deadLetters, err := s.DeadLetters(t.Context(), "c")
				return err == nil && len(deadLetters) == 2 && deadLetters[0].Error != "" && deadLetters[0].Attempts > 0 && deadLetters[1].Attempts == 0
			})
			if err := test.operate(s, fixed); err != nil {
				t.Fatal(err)
			}
			await(t, "no dead letters", func() bool { return s.deadLetters(t) == "" })
			s.awaitCheckpoint(t, 4)
			s.append(t, "bad", 1) // 5
			s.awaitHandled(t, test.want)
		})
	}
}
