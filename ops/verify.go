package ops

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/delivery"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Verification asks whether the rows of one aggregate are what a consumer's code makes of its
// events, see [Operator.Verify].
type Verification struct {
	// Consumer is the code: that which runs, or that of a new build.
	Consumer consumer.Forgetter
	Log      store.Log
	// Decoder is that of the workers, see worker.WithDecoder; nil: none.
	Decoder func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error)

	AggregateType string
	AggregateID   string // empty: an aggregate of the type is drawn
	// Rows is a query of the aggregate's rows. $1 is the aggregate's ID. Leave out columns that
	// differ from run to run, such as serial numbers.
	Rows string
}

// Verified is the result of a Verification. The rows are right if Missing, Unexpected and Err are
// empty.
type Verified struct {
	AggregateType, AggregateID string

	First, Last int64    // positions of the first and the last event that the consumer has handled
	Events      int      // number of these events that were handled again without an error
	Missing     []string // rows that the events make and the table lacks, as JSON
	Unexpected  []string // rows of the table that the events do not make, as JSON

	Position int64 // of the first event that Handle failed at; of a BatchConsumer, of its batch
	Err      error // of Handle
}

// Verify recomputes the rows of one aggregate and compares them with those that are there. In one
// transaction, it calls Forget, and then Handle with the aggregate's events that the consumer has
// handled: not its dead letters, nor what was skipped, discarded or is in doubt. It rolls the
// transaction back, so nothing changes.
//
// With the code of a new build, Verify is a preview: the differences are what a replay would
// change, and Err is what would fail. [Operator.VerifySample] verifies many aggregates.
//
// The events have Late and Replay set, see [consumer.Delivery]. Handle must then leave out effects outside of
// the transaction; these are not rolled back. Events come in the order of positions: a handler that
// depends on the order may have got late events in another.
//
// The consumer waits until Verify ends; ctx limits that. Handle must send a statement within any 15
// seconds. After a Reset backwards, Verify assumes that the rows were deleted before.
//
// Verify returns [ErrNotFound] if the consumer does not exist, or has handled no event of the aggregate.
// It also returns ErrNotFound while a Reset or a Replay lets the consumer handle events of the aggregate
// again, and after one was discarded in a Replay. It returns [ErrInvalid] for a consumer with its own key,
// see [consumer.ByKey].
func (o *verifyOps) Verify(ctx context.Context, v Verification) (_ Verified, err error) {
	r := recomputation{Verification: v}
	if err = v.check(); err == nil {
		err = o.verify(ctx, &r)
	}
	return orZero(r.found, o.fail("verify a consumer", err))
}

func (v Verification) check() error {
	if pgdriver.IsNil(v.Consumer) || pgdriver.IsNil(v.Log) {
		return fmt.Errorf("%w: Consumer and Log are needed", ErrInvalid)
	}
	err := errtext.Join(checkConsumer(v.Consumer.Name()), checkText("AggregateType", v.AggregateType, maxAggregate))
	if v.AggregateID != "" {
		err = errtext.Join(err, checkText("AggregateID", v.AggregateID, maxAggregate))
	}
	if strings.TrimSpace(v.Rows) == "" {
		err = errtext.Join(err, fmt.Errorf("%w: Rows is empty: give a query of the aggregate's rows, with $1 for its ID", ErrInvalid))
	}
	if f, ok := v.Consumer.(interface{ Forgets() bool }); ok && !f.Forgets() { // of package pgxtx
		err = errtext.Join(err, fmt.Errorf("%w: the handler has no Forget: add one, which deletes its rows of an aggregate", ErrInvalid))
	}
	if s, ok := v.Consumer.(consumer.ScopedConsumer); ok && v.AggregateType != "" {
		if types := s.AggregateTypes(); len(types) > 0 && !slices.Contains(types, v.AggregateType) {
			err = errtext.Join(err, fmt.Errorf("%w: the consumer selects %s, and not %s", ErrInvalid, errtext.Value(strings.Join(types, ", ")), errtext.Value(v.AggregateType)))
		}
	}
	return err
}

func (o *verifyOps) verify(ctx context.Context, r *recomputation) error {
	conn, err := o.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := pgdriver.WithoutJIT(ctx, tx); err != nil {
		return err
	}
	var lockTimeout string // of the role, which lock sets aside
	if err := tx.QueryRowContext(ctx, `SELECT current_setting('lock_timeout')`).Scan(&lockTimeout); err != nil {
		return err
	}
	r.c = o.in(tx)
	at, positions, err := r.lock(ctx)
	if err != nil {
		return err
	}
	if _, err := exec(ctx, tx, "limit the handler", `SELECT set_config('lock_timeout', $1::text, true)`, lockTimeout); err != nil {
		return err
	}
	r.found = Verified{AggregateType: r.AggregateType, AggregateID: r.AggregateID, First: positions[0], Last: positions[len(positions)-1]}
	_, slots, _ := partition.Parse(at.consumer)
	d := consumer.Delivery{Consumer: r.Consumer.Name(), Partition: slots.String(), Attempt: 1, Late: true, Replay: true}
	return r.run(delivery.With(ctx, d, delivery.LenderOf(conn)), positions)
}

// recomputation lets the code of a Verification write the rows again.
type recomputation struct {
	Verification
	drawn map[string]bool // aggregates that are not to be verified again if they are drawn

	c     consumerTx
	found Verified
	took  time.Duration // of Decoder and Handle, for found.Events
}

// lock locks the consumer, draws the aggregate if none is given, and returns the unit that has it, with
// the positions of the aggregate's events that the unit has handled.
func (r *recomputation) lock(ctx context.Context) (at locked, positions []int64, err error) {
	c := r.c
	units, err := c.lock(ctx, r.Consumer.Name())
	if err != nil {
		return at, nil, err
	}
	if err := c.refuseOwnKey(ctx, units[0]); err != nil {
		return at, nil, err
	}
	if r.AggregateID == "" {
		last := slices.MaxFunc(units, func(a, b locked) int { return cmp.Compare(a.position, b.position) }).position
		err := c.tx.QueryRowContext(ctx, c.sql.drawAggregate, r.AggregateType, rand.Int64N(last+1), last).Scan(&r.AggregateID)
		if noRows(err) {
			return at, nil, errNoEvents
		}
		if err != nil {
			return at, nil, fmt.Errorf("draw an aggregate: %w", err)
		}
		if r.drawn[r.AggregateID] {
			return at, nil, errNoEvents
		}
	}
	if units, err = unitOf(units, r.AggregateID); err != nil {
		return at, nil, err
	}
	if positions, err = r.handled(ctx, units[0]); err == nil && len(positions) == 0 {
		err = errNoneHandled
	}
	return units[0], positions, err
}

// handled returns the positions of the aggregate's events that a unit's handler has handled.
func (r *recomputation) handled(ctx context.Context, at locked) ([]int64, error) {
	steps, err := r.c.steps(ctx, r.Consumer.Name())
	if err != nil {
		return nil, err
	}
	of, slot := scope.Aggregate{Type: r.AggregateType, ID: r.AggregateID}, partition.Slot(r.AggregateID)
	type passed struct {
		scope.Event
		since        int64 // the position at which the consumer began at the head
		dead, replay bool  // it is a dead letter; it waits for a replay
	}
	all, err := pgdriver.QueryAll(ctx, r.c.tx, pgdriver.Columns(func(e *passed) []any {
		return []any{&e.Position, &e.Unknown, &e.since, &e.dead, &e.replay}
	}), r.c.sql.eventsOf, at.consumer, of.Type, of.ID, scope.Reached(steps, slot))
	if err != nil {
		return nil, fmt.Errorf("read the positions of its events: %w", err)
	}
	var start int64
	if s, ok := r.Consumer.(consumer.Starter); ok {
		after, atHead := s.StartAt().Position()
		if start = after; atHead && len(all) > 0 {
			start = all[0].since
		}
	}
	var events []scope.Event
	waiting := map[int64]bool{} // dead letters
	for _, e := range all {
		if e.replay || e.Position > at.position {
			return nil, errAgain
		}
		events, waiting[e.Position] = append(events, e.Event), e.dead
	}
	positions, known := scope.Handled(steps, slot, of, start, events)
	if !known {
		return nil, errDropped
	}
	return slices.DeleteFunc(positions, func(p int64) bool { return waiting[p] }), nil
}

func (r *recomputation) run(ctx context.Context, positions []int64) error {
	var began, ended string
	const current = `SELECT txid_current()::text`
	if err := r.c.tx.QueryRowContext(ctx, current).Scan(&began); err != nil {
		return err
	}
	there, err := r.rows(ctx)
	if err != nil {
		return err
	}
	handled := r.handle(ctx, positions)
	err = r.c.tx.QueryRowContext(ctx, current).Scan(&ended)
	waited := func(limit error) error {
		called := "Forget"
		if r.found.Position > 0 {
			called = fmt.Sprintf("Handle at position %d", r.found.Position)
		}
		return fmt.Errorf("call %s, which waits for Verify if it writes through the pool: %w", called, limit)
	}
	switch {
	case ctx.Err() != nil && handled != nil:
		return waited(context.Cause(ctx))
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && began != ended, errors.Is(err, sql.ErrTxDone):
		return errVerifyEnded
	case pgdriver.IsTimeLimit(handled):
		return waited(handled)
	case handled != nil && (pgdriver.IsConflict(handled) || pgdriver.IsConnectionLoss(handled)):
		return handled // the database's, not the handler's
	case handled != nil:
		r.found.Err = handled
		return nil
	case pgdriver.SQLState(err) == pgdriver.InFailedTransaction:
		r.found.Err = errors.New("the handler returned no error, though a statement of its failed and aborted the transaction: return that error")
		return nil
	case err != nil:
		return err
	}
	made, err := r.rows(ctx)
	if err != nil {
		return err
	}
	r.found.Position = 0
	r.found.Missing, r.found.Unexpected = without(made, there), without(there, made)
	return nil
}

// errVerifyEnded reports that what Verify did may have been committed.
var errVerifyEnded = errors.New("the handler ended the transaction, which belongs to Verify: what it did may be committed; remove the Commit, Rollback or equivalent SQL from it")

// rows returns the rows of the aggregate as JSON, sorted.
func (r *recomputation) rows(ctx context.Context) ([]string, error) {
	all, err := pgdriver.QueryAll(ctx, r.c.tx, pgdriver.Value[string], asJSON(r.Rows), r.AggregateID)
	switch state := pgdriver.SQLState(err); {
	case state == pgdriver.InsufficientPrivilege:
		return nil, fmt.Errorf("read the rows of the aggregate: %v: grant SELECT on the tables of Rows", err) // %v, since no table of the library is meant
	case strings.HasPrefix(state, "42"):
		return nil, fmt.Errorf("%w: Rows: %v", ErrInvalid, err)
	case err != nil:
		return nil, fmt.Errorf("read the rows of the aggregate: %w", err)
	}
	slices.Sort(all)
	return all, nil
}

// asJSON returns the query of the rows of a user's query as JSON.
func asJSON(query string) string {
	return `SELECT row_to_json(r)::text AS row FROM (` + strings.TrimRight(query, "; \n\t") + `
) AS r`
}

// without returns the elements of a that b lacks. Both are sorted, and may have an element more than
// once.
func without(a, b []string) (more []string) {
	for _, x := range a {
		i, found := slices.BinarySearch(b, x)
		if !found {
			more = append(more, x)
			continue
		}
		b = b[i+1:]
	}
	return more
}

// verifyBatch is the number of events of a call of HandleBatch.
const verifyBatch = 100

// handle forgets the aggregate and handles its events. A panic is an error.
func (r *recomputation) handle(ctx context.Context, positions []int64) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = runtime.Panicked(v)
		}
	}()
	if err := r.Consumer.Forget(ctx, r.c.tx, r.AggregateType, r.AggregateID); err != nil {
		return fmt.Errorf("call Forget: %w", err)
	}
	bulk, isBulk := r.Consumer.(consumer.BatchConsumer)
	size := 1
	if isBulk {
		size = verifyBatch
	}
	for some := range slices.Chunk(positions, size) {
		r.found.Position = some[0]
		events, err := r.read(ctx, some)
		began := time.Now()
		if err == nil && r.Decoder != nil {
			err = r.decode(ctx, events)
		}
		if err == nil && isBulk {
			err = bulk.HandleBatch(ctx, r.c.tx, events)
		} else if err == nil {
			err = r.Consumer.Handle(ctx, r.c.tx, events[0])
		}
		if err != nil {
			return err
		}
		r.found.Events += len(some)
		r.took += time.Since(began)
	}
	return nil
}

// read returns the events at positions as they are in the log.
func (r *recomputation) read(ctx context.Context, positions []int64) ([]store.PersistedEvent, error) {
	events := make([]store.PersistedEvent, len(positions))
	for i, p := range positions {
		found, err := r.Log.ReadEvents(ctx, r.c.tx, p-1, 1)
		switch {
		case err != nil:
			return nil, err
		case len(found) == 0 || found[0].GlobalPosition != p:
			return nil, fmt.Errorf("the Log has no event at position %d, which the table of events has: give the log of the workers", p)
		}
		events[i] = found[0]
	}
	return events, nil
}

// decode makes of events of the log what handlers get.
func (r *recomputation) decode(ctx context.Context, events []store.PersistedEvent) (err error) {
	for i := range events {
		if events[i], err = r.Decoder(ctx, events[i]); err != nil {
			return fmt.Errorf("call Decoder: %w", err)
		}
	}
	return nil
}
