package consume

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// After a failure of the database the pause ends when the frontier recovers. After any failure it
// ends when others move the consumer.
func TestPauseAfterAFailureEnds(t *testing.T) {
	for name, test := range map[string]struct {
		disturbed int
		known     int64 // the revision before the failure
		want      time.Duration
	}{
		"after a disturbance":                 {1, noRevision, time.Second},
		"after a failure":                     {0, noRevision, time.Hour},
		"after a failure of a known revision": {0, 7, time.Hour},
		"moved by an operator":                {0, 6, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, back := time.Now(), make(chan struct{})
				time.AfterFunc(time.Second, func() { close(back) })
				a := agenda{tally: failure.Tally{Disturbed: test.disturbed}}
				reload := newReloadSignal()
				reload.revision.Store(test.known)
				reload.forget()
				reload.signal() // of before the failure
				time.AfterFunc(time.Minute, func() {
					if known := reload.revision.Load(); movedByOthers(known, known, 7) {
						reload.signal()
					}
				})
				signals{recovered: back}.restAfterFailure(t.Context(), time.Hour, a.disturbed(), reload.moves())
				if took := time.Since(began); took != test.want {
					t.Errorf("the pause took %v, want %v", took, test.want)
				}
			})
		})
	}
}

// A batch that the guard refuses is tried again at once, since usually another worker or an
// operator has moved the progress. After repeated refusals the loop waits with growing
// pauses.
func TestBackoffWhileGuardRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &overtakes{}
		const times = 20
		began := time.Now()
		c.yield(t.Context(), nil, nil, nil, nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("after the first time there is a pause of %v, want none", took)
		}
		for range times - 1 {
			c.yield(t.Context(), nil, nil, nil, nil)
		}
		if took := time.Since(began); took < time.Second || took > times*250*time.Millisecond {
			t.Errorf("%d times took %v, want more than a second, at most 250ms each", times, took)
		}
		began = time.Now()
		back := make(chan struct{})
		close(back)
		c.yield(t.Context(), back, nil, nil, nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("the frontier is back, and the pause takes %v more", took)
		}
	})
}

// The source of store.ErrIncarnation decides the outcome. From the worker's own statements,
// the progress is loaded again, and the frontier checks its server. From a handler, the
// handler has failed. If the reason of the guard's refusal is unknown, the database has
// failed.
func TestSourceOfIncarnationErrorDecidesOutcome(t *testing.T) {
	elsewhere, other := fmt.Errorf("read: %w", store.ErrIncarnation), errors.New("no answer")
	batch := &work{}
	for name, test := range map[string]struct {
		r     result
		want  outcome
		batch bool // the failure counts as the batch's
	}{
		"a guard that was refused there":     {result{outcome: overtaken, err: elsewhere, work: batch}, overtaken, true},
		"a guard that was refused somewhere": {result{outcome: overtaken, err: other, work: batch}, disturbed, false},
		"a load or a read":                   {result{outcome: disturbed, err: elsewhere}, overtaken, false},
		"a read without an answer":           {result{outcome: disturbed, err: other}, disturbed, false},
		"a batch that was disturbed":         {result{outcome: disturbed, err: elsewhere, work: batch}, disturbed, true},
		"a handler":                          {result{outcome: handlerFailed, err: elsewhere, work: batch}, handlerFailed, true},
	} {
		c := &consumerLoop{unit: &unit{reload: newReloadSignal()}}
		r := test.r
		if fatal := c.settle(t.Context(), &r); fatal != nil || r.outcome != test.want || (r.work != nil) != test.batch {
			t.Errorf("%s: outcome %d with batch %v, want %d with batch %v; %v", name, r.outcome, r.work, test.want, test.batch, fatal)
		}
	}
}

// Retries of dead letters alternate with new events. All retries run even without new
// events, while the consumer watches an open range and the frontier does not move.
func TestDeadLetterRetriesAlternateWithNewEvents(t *testing.T) {
	d, h := newLedgerStepper(t, func(c *Config) { c.StaleGapThreshold = 10 * time.Millisecond })
	open := beginOne(t, d.DB, "open") // 1
	defer func() { _ = open.Rollback() }()
	for _, aggregate := range []string{"a", "b", "c"} { // 2 to 4
		appendOne(t, d.DB, aggregate)
	}
	h.stepFrontier(t, "a doubt", func(v *frontier.Value) bool { return v.Safe == 4 && len(v.Doubts) == 1 })
	h.handle(t)
	d.Exec(t, `DELETE FROM ledger`)
	d.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, retry_at)
		SELECT 'all', global_position, aggregate_type, aggregate_id, event_id, event_type, 1, clock_timestamp() FROM events`)
	d.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
	h.loop.forget() // as after an operator's change
	h.handle(t)
	if p := h.loop.progress; p == nil || len(p.Open) != 1 {
		t.Fatalf("the consumer watches no open range: %+v", p)
	}
	var handled string
	if err := d.DB.QueryRow(`SELECT coalesce(string_agg(position::text, ' ' ORDER BY position), '') FROM ledger`).Scan(&handled); err != nil || handled != "2 3 4" {
		t.Errorf("of the dead letters at 2 3 4 those at %q were handled, and the loop waits for news; %v", handled, err)
	}
}

// A consumer at the open range limit still reports it after the database has recovered.
func TestOpenRangeLimitIsShownAfterDatabaseFailure(t *testing.T) {
	d, h := newLedgerStepper(t, func(c *Config) { c.StaleGapThreshold = 10 * time.Millisecond }, func(c *Config) { c.MaxOpenRanges = 1 })
	for n := range 2 {
		open := beginOne(t, d.DB, fmt.Sprint("open ", n)) // 1 and 3
		defer func() { _ = open.Rollback() }()
		appendOne(t, d.DB, "other") // 2 and 4
	}
	h.stepFrontier(t, "two doubts", func(v *frontier.Value) bool { return v.Safe == 4 && len(v.Doubts) == 2 })
	waits := func(when string) {
		t.Helper()
		h.handle(t)
		var why errTooManyOpen
		if err := h.loop.status.snapshot(nil, nil).LastError; !errors.As(err, &why) {
			t.Errorf("%s the status says: %v", when, err)
		}
	}
	waits("at first")
	h.loop.tally.Disturbed = 1
	h.loop.forget() // as after a failure of the database
	waits("after a failure of the database")
}

// Refusals count in a row: a committed batch resets the count.
func TestCommitResetsRefusals(t *testing.T) {
	d, h := newLedgerStepper(t)
	appendOne(t, d.DB, "1")
	h.stepFrontierTo(t, 1)
	h.loop.overtakes.inARow = reopenAfter
	h.handle(t)
	if n := h.loop.overtakes.inARow; n != 0 {
		t.Errorf("after a batch %d refusals are still counted", n)
	}
}

// Skipping an event clears its error, even if no event follows.
func TestSkipClearsLastError(t *testing.T) {
	var u unitStatus
	u.failed(&observe.ConsumerError{Position: 5}, 2)
	for position, want := range []bool{true, true, true, true, true, false} {
		u.loaded(&progress.State{Position: int64(position)})
		if s := u.s; (s.LastError != nil) != want || (s.Failures > 0) != want || (s.Stuck > 0) != want {
			t.Errorf("at %d the status says %v, %d failures, stuck at %d", position, s.LastError, s.Failures, s.Stuck)
		}
	}
	u.failed(&observe.ConsumerError{Position: 3}, 2) // a late event
	u.loaded(&progress.State{Position: 5})
	if s := u.s; s.LastError == nil || s.Failures == 0 || s.Stuck != 3 {
		t.Errorf("a late event fails, and the status says %v, %d failures, stuck at %d", s.LastError, s.Failures, s.Stuck)
	}
}

// The status shows that another server has answered until the right server answers, even
// without an event to handle.
func TestWrongServerErrorEndsWithRightAnswer(t *testing.T) {
	d, h := newLedgerStepper(t)
	appendOne(t, d.DB, "1")
	h.stepFrontierTo(t, 1)
	h.handle(t)
	h.loop.overtakes.inARow = reopenAfter
	h.loop.overtakes.yield(t.Context(), nil, h.frontier, h.loop.status, store.ErrIncarnation)
	says := func() error { return h.loop.status.snapshot(nil, nil).LastError }
	if err := says(); !errors.Is(err, store.ErrIncarnation) {
		t.Errorf("the status says: %v", err)
	}
	h.loop.forget() // as after each such answer
	h.handle(t)
	if err := says(); err != nil {
		t.Errorf("after an answer of the right server the status says: %v", err)
	}
}

// A move by another worker or an operator is a change only while the loop knows the
// progress. It is none after the loop has dropped its progress, or has ended.
func TestUnloadedProgressIsNotWatched(t *testing.T) {
	d, h := newLedgerStepper(t)
	appendOne(t, d.DB, "1")
	h.stepFrontierTo(t, 1)
	h.handle(t)
	d.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
	for _, known := range []bool{true, false} {
		if !known {
			h.loop.forget()
		}
		if news, err := h.progressWatch.signalMoved(t.Context(), h.units, []string{"all"}); err != nil || news != known {
			t.Errorf("the loop knows the progress: %v; a move is a change: %v, %v", known, news, err)
		}
	}
}
