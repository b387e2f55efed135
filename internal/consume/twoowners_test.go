package consume

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// hold lets a test stop a goroutine once. The goroutine announces itself and waits to be
// released.
type hold struct {
	armed       atomic.Bool
	here, letGo chan struct{}
	what        string
}

func newHold(what string) *hold {
	return &hold{what: what, here: make(chan struct{}), letGo: make(chan struct{})}
}

func (h *hold) stop(ctx context.Context) {
	if !h.armed.CompareAndSwap(true, false) {
		return
	}
	close(h.here)
	select {
	case <-h.letGo:
	case <-ctx.Done():
	}
}

func (h *hold) await(t *testing.T) {
	t.Helper()
	select {
	case <-h.here:
	case <-time.After(pgtest.Patience):
		t.Fatalf("waited in vain for a loop that %s", h.what)
	}
}

// heldConsumer can be stopped in its handler, before it writes.
type heldConsumer struct {
	steppedConsumer
	inHandler *hold
}

func (c heldConsumer) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	c.inHandler.stop(ctx)
	return c.steppedConsumer.Handle(ctx, tx, e)
}

// heldLog can be stopped after it has read late events.
type heldLog struct {
	rangeLog
	hasRead *hold
}

func (l heldLog) ReadRanges(ctx context.Context, q store.Querier, ranges []store.Range, limit int) ([]store.PersistedEvent, error) {
	events, err := l.rangeLog.ReadRanges(ctx, q, ranges, limit)
	l.hasRead.stop(ctx)
	return events, err
}

// twoOwners are two workers that know an open position with a new event, and that both
// believe to own the consumer. The consumer is assigned to the first one, which can be
// stopped.
type twoOwners struct {
	db            *sql.DB
	first, second *stepper
	before        progress.State // the progress that both know

	inHandler, hasRead *hold
}

func newTwoOwners(t *testing.T) *twoOwners {
	d := pgtest.New(t)
	d.Exec(t, createLedger)
	late := beginOne(t, d.DB, "late") // 1
	appendOne(t, d.DB, "other")       // 2
	o := &twoOwners{db: d.DB, inHandler: newHold("is in its handler"), hasRead: newHold("has read a late event")}
	c := steppedConsumer{"all", nil, new(atomic.Bool)}
	patience := func(c *Config) { c.StaleGapThreshold = 10 * time.Millisecond }
	o.second = newStepper(t, d.DB, storepostgres.NewStore(nil), c, patience)
	o.first = newStepper(t, d.DB, heldLog{newRangeLog(), o.hasRead}, heldConsumer{c, o.inHandler}, patience)
	for _, w := range []*stepper{o.first, o.second} {
		w.stepFrontier(t, "a doubt", func(v *frontier.Value) bool { return v.Safe == 2 && len(v.Doubts) == 1 })
		w.handle(t)
	}
	o.before = *o.second.loop.progress
	if o.before.Position != 2 || len(o.before.Open) != 1 {
		t.Fatalf("the late event's position is not open: %+v", o.before)
	}
	o.first.handle(t) // loads the progress that its batch has made
	if err := late.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*stepper{o.first, o.second} {
		w.stepFrontier(t, "the doubt to end", func(v *frontier.Value) bool { return len(v.Doubts) == 0 })
	}
	return o
}

// judge runs both workers on, each as the owner, and checks the ledger.
func (o *twoOwners) judge(t *testing.T) {
	t.Helper()
	for _, w := range []*stepper{o.first, o.second} {
		w.own(t)
		w.handle(t)
	}
	var handled, late int
	if err := o.db.QueryRow(`SELECT count(*), count(*) FILTER (WHERE position = 1 AND late) FROM ledger`).Scan(&handled, &late); err != nil || handled != 2 || late != 1 {
		t.Errorf("%d events were handled, the late one %d times; want 2, and once; %v", handled, late, err)
	}
	after, err := o.first.checkpoints.Load(t.Context(), o.db, "all")
	if err != nil || after.Position != o.before.Position || after.Revision != o.before.Revision+1 || len(after.Open) > 0 {
		t.Errorf("afterwards the progress is %+v, before it was %+v; %v", after, o.before, err)
	}
}

// Delivering a late event does not move the position. Another owner waits for the same row.
// Only the revision shows that owner that the event was delivered.
func TestLateEventWhileAnotherOwnerDeliversIt(t *testing.T) {
	o := newTwoOwners(t)
	o.inHandler.armed.Store(true)
	first := o.first.handleOnce(t)
	o.inHandler.await(t)
	o.second.own(t)
	second := o.second.handleOnce(t)
	pgtest.AwaitBlocked(t, o.db)
	close(o.inHandler.letGo)
	awaitEnd(t, first, committed)
	awaitEnd(t, second, overtaken)
	o.judge(t)
}

// An owner reads the late event and is stopped. Another owner delivers the event, and the
// consumer is assigned to the first owner again. Then the first owner continues.
func TestLateEventAfterAnotherOwnerDeliveredIt(t *testing.T) {
	o := newTwoOwners(t)
	o.hasRead.armed.Store(true)
	first := o.first.handleOnce(t)
	o.hasRead.await(t)
	o.second.own(t)
	awaitEnd(t, o.second.handleOnce(t), committed)
	o.first.own(t)
	close(o.hasRead.letGo)
	awaitEnd(t, first, overtaken)
	o.judge(t)
}
