package ops

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/store"
)

// Proof says which events of the log a consumer has handled exactly once.
type Proof struct {
	Consumer string
	From     int64 // the first position for which there are receipts
	To       int64 // the consumer's position; of a split consumer, the lowest of its units, or a position below it
	Events   int64 // number of events that were handled exactly once, or that an operator skipped or discarded
	Pending  int64 // number of dead letters, whose events are not handled yet
	Unproven []Unproven
}

// Holds reports whether everything from From to To is proven, except positions without receipts that resets explain.
func (p *Proof) Holds() bool {
	return !slices.ContainsFunc(p.Unproven, func(u Unproven) bool { return u.Operation == 0 })
}

// Unproven are positions of which something is wrong, or not known.
type Unproven struct {
	First, Last int64
	Events      int64 // number of events that were handled too often; below 0: that were not handled
	Reason      string
	Operation   int64 // ID of the last reset that explains why the positions have no receipts; 0: none does
}

// Prove compares what a consumer has handled with the log, and finds events that it has not handled,
// or more than once: because positions were passed by mistake, a checkpoint was changed by hand, or a
// row of the log was deleted.
//
// With each batch, a worker writes a receipt: number and sum of the events that the batch has. Prove
// reads all events from the first receipt on and computes the same sums. Dead letters and events in
// doubt are not handled yet. Events that an operator has skipped or discarded count as handled. A
// single event that is missing or too many is named. Events of types that the code did not select are
// left out, also if [Operator.ReplayTypes] has delivered them. Of several, Prove names a range of at most
// 16,384 positions.
//
// Prove does not see what the handler has done with the events, see [Operator.Verify]. The receipt is
// written before the handler is called: an event that a batch had and did not pass to the handler is not
// found. With its own key, a consumer in partitions is proven up to the lowest of their positions.
//
// Prove reads in one transaction with one snapshot, which holds back VACUUM until it ends. progress is
// called with the positions that were read; nil: not called.
func (o *logOps) Prove(ctx context.Context, consumer string, progress func(position, of int64)) (p *Proof, err error) {
	if err = checkConsumer(consumer); err == nil {
		p, err = o.prove(ctx, consumer, progress)
		err = pgdriver.CutOff(ctx, err)
	}
	if err != nil {
		return nil, o.fail("prove consumer "+errtext.Value(consumer), err)
	}
	return p, nil
}

func (o *logOps) prove(ctx context.Context, name string, progress func(position, of int64)) (*Proof, error) {
	tx, err := o.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // the transaction has only read
	if err := pgdriver.WithoutJIT(ctx, tx); err != nil {
		return nil, err
	}
	c := proving{consumerTx: o.in(tx), name: name, scopes: map[string]*scope.Scope{}}
	if err := c.read(ctx); err != nil {
		return nil, err
	}
	judge := receipt.NewJudge(c.units, c.regions, c.singles, c.waiting, c.doubted)
	if c.keyed && slices.ContainsFunc(c.units, func(u receipt.Unit) bool { return u.Position != c.position }) {
		c.position = judge.Until(c.position)
	}
	if err := c.readLog(ctx, judge, progress); err != nil {
		return nil, err
	}
	p := &Proof{Consumer: name, From: judge.From(), To: c.position, Pending: int64(len(c.waiting))}
	if p.From == 0 {
		p.From = c.position + 1
		return p, nil
	}
	for _, f := range judge.Findings() {
		u, err := c.explain(ctx, f)
		if err != nil {
			return nil, err
		}
		if n := len(p.Unproven); n == 0 || p.Unproven[n-1] != u { // else it is of another partition
			p.Unproven = append(p.Unproven, u)
		}
	}
	p.Events = judge.Events
	return p, nil
}

// proving is what Prove reads of a consumer.
type proving struct {
	consumerTx
	name     string
	scopes   map[string]*scope.Scope
	units    []receipt.Unit
	regions  []receipt.Covered
	singles  []receipt.Single
	waiting  map[int64]bool
	doubted  []store.Range // at a change of the scope
	resets   []receipt.Move
	keyed    bool // only the consumer's code knows the slots
	position int64
}

func (c *proving) read(ctx context.Context) error {
	for _, read := range []func(context.Context) error{c.readUnits, c.readReceipts, c.readWaiting, c.readOperations} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return nil
}

// scopeOf parses a scope as stored.
func (c *proving) scopeOf(text string) (*scope.Scope, error) {
	if s, known := c.scopes[text]; known || text == "" {
		return s, nil
	}
	s, err := scope.Parse(text)
	c.scopes[text] = &s
	return &s, err
}

func slotsOf(unit string) partition.Range {
	if _, slots, ok := partition.Parse(unit); ok {
		return slots
	}
	return partition.All
}

// covered adds a region of a unit.
func (c *proving) covered(unit, key, selects string, r receipt.Region, ended time.Time) error {
	slots := slotsOf(unit)
	s, err := c.scopeOf(selects)
	c.keyed = c.keyed || slots != partition.All && key != ""
	c.regions = append(c.regions, receipt.Covered{Region: r, Slots: slots, Scope: s, Ended: ended})
	return err
}

// readUnits reads the units, with the positions that they have in doubt.
func (c *proving) readUnits(ctx context.Context) error {
	type row struct {
		unit, key, receipt, scope, open string
		position                        int64
		now                             time.Time
	}
	rows, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Columns(func(r *row) []any {
		return []any{&r.unit, &r.position, &r.key, &r.receipt, &r.scope, &r.open, pgdriver.UTC(&r.now)}
	}), `
SELECT consumer_name, last_position, partition_key, coalesce(receipt::text, ''), coalesce(scope::text, ''), coalesce((
	SELECT jsonb_agg(jsonb_build_object('first', s.gap_position, 'last', s.gap_end) ORDER BY s.gap_position)
	FROM `+c.t.GapSkips.SQL()+` AS s WHERE s.consumer_name = c.consumer_name AND s.state = 'open'), '[]')::text, `+pgdriver.Time(`clock_timestamp()`)+`
FROM `+c.t.Checkpoints.SQL()+` AS c WHERE (consumer_name = $1::text OR `+unitsOf+`) AND split_at IS NULL ORDER BY consumer_name COLLATE "C"`, c.name)
	switch {
	case err != nil:
		return fmt.Errorf("read its checkpoints: %w", err)
	case len(rows) == 0:
		return errNoCheckpoint
	}
	for i, r := range rows {
		if err := refuseRenamed(ctx, c.consumerTx, c.name, r.position); err != nil {
			return err
		}
		u := receipt.Unit{Slots: slotsOf(r.unit), Position: r.position}
		c.keyed = c.keyed || u.Slots != partition.All && r.key != ""
		if err := json.Unmarshal([]byte(r.open), &u.Open); err != nil {
			return fmt.Errorf("read its positions in doubt: %w", err)
		}
		region, err := receipt.Parse(r.receipt)
		if err == nil && region != nil {
			err = c.covered(r.unit, r.key, r.scope, *region, r.now)
		}
		if err != nil {
			return err
		}
		c.units = append(c.units, u)
		if i == 0 || r.position < c.position {
			c.position = r.position
		}
	}
	return nil
}

// readReceipts reads the receipts of the regions that have ended, and of single events.
func (c *proving) readReceipts(ctx context.Context) error {
	type row struct {
		unit, key, scope string
		region           receipt.Region
		event            uuid.NullUUID
		at               time.Time
	}
	rows, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Columns(func(r *row) []any {
		return []any{&r.unit, &r.key, &r.scope, &r.region.First, &r.region.Last, &r.region.Events, &r.region.Positions, &r.region.Hash, &r.event, pgdriver.UTC(&r.at)}
	}), `
SELECT unit, partition_key, coalesce(scope::text, ''), first_position, last_position, events, positions, hash, event_id, `+pgdriver.Time(`created_at`)+`
FROM `+c.t.Receipts.SQL()+` WHERE consumer_name = $1::text`, c.name)
	if err != nil {
		return fmt.Errorf("read its receipts: %w", err)
	}
	for _, r := range rows {
		if r.event.Valid {
			c.singles = append(c.singles, receipt.Single{Event: receipt.Event{Position: r.region.First, ID: r.event.UUID}, Slots: slotsOf(r.unit), Unsure: r.unit == ""})
		} else if err := c.covered(r.unit, r.key, r.scope, r.region, r.at); err != nil {
			return err
		}
	}
	return nil
}

// readWaiting reads the positions of the dead letters that were never handled.
func (c *proving) readWaiting(ctx context.Context) error {
	c.waiting = map[int64]bool{}
	all, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Value[int64], `
SELECT global_position FROM `+c.t.DeadLetters.SQL()+` WHERE (consumer_name = $1::text OR `+unitsOf+`) AND NOT received`, c.name)
	if err != nil {
		return fmt.Errorf("read its dead letters: %w", err)
	}
	for _, position := range all {
		c.waiting[position] = true
	}
	return nil
}

// readOperations reads the resets since the consumer's start, and the positions that were in doubt at a
// change of the scope. Such an event may have been handled under either scope.
func (c *proving) readOperations(ctx context.Context) error {
	type row struct {
		id                 int64
		unit, kind, detail string
		at                 time.Time
	}
	rows, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Columns(func(r *row) []any { return []any{&r.id, &r.unit, &r.kind, &r.detail, pgdriver.UTC(&r.at)} }), `
SELECT id, consumer_name, operation, coalesce(detail, '{}')::text, `+pgdriver.Time(`created_at`)+` FROM `+c.t.Operations.SQL()+`
WHERE (consumer_name = $1::text OR `+unitsOf+`) AND operation IN ('reset', 'scope', 'retire') AND detail->>'renamed_to' IS NULL ORDER BY id`, c.name)
	if err != nil {
		return fmt.Errorf("read what was done to it: %w", err)
	}
	for _, r := range rows {
		var moved scope.Moved
		var changed scope.Changed
		var err error
		switch Kind(r.kind) {
		case KindRetire: // a new consumer of the same name
			c.resets, c.doubted = nil, nil
		case KindReset:
			err = json.Unmarshal([]byte(r.detail), &moved)
			c.resets = append(c.resets, receipt.Move{ID: r.id, Slots: slotsOf(r.unit), From: moved.From, To: moved.To, At: r.at})
		default:
			err = json.Unmarshal([]byte(r.detail), &changed)
		}
		if err != nil {
			return fmt.Errorf("read operation %d: %w", r.id, err)
		}
		for _, open := range changed.Open {
			c.doubted = append(c.doubted, store.Range{First: open.First, Last: open.Last})
		}
	}
	slices.SortFunc(c.doubted, func(a, b store.Range) int { return cmp.Compare(a.First, b.First) })
	return nil
}

// proofPage is the number of events that one statement reads.
const proofPage = 10_000

// readLog gives the judge the events of the log.
func (c *proving) readLog(ctx context.Context, j *receipt.Judge, progress func(position, of int64)) error {
	page := pgdriver.Columns(func(e *loggedEvent) []any { return []any{&e.Position, &e.ID, &e.Type, &e.aggregate} })
	for at, to := j.From()-1, j.To(); ; {
		events, err := pgdriver.QueryAll(ctx, c.tx, page, `
SELECT `+positionColumn+`, event_id, aggregate_type, aggregate_id FROM `+c.t.Events.SQL()+`
WHERE `+positionColumn+` > $1::bigint AND `+positionColumn+` <= $2::bigint ORDER BY `+positionColumn+` LIMIT $3::int`, at, to, proofPage)
		if err != nil {
			return fmt.Errorf("read the log after position %d: %w", at, err)
		}
		for _, e := range events {
			if e.Slot = -1; !c.keyed {
				e.Slot = partition.Slot(e.aggregate)
			}
			j.Add(e.LogEvent)
			at = e.Position
		}
		if progress != nil {
			progress(at, to)
		}
		if len(events) < proofPage {
			return nil
		}
	}
}

type loggedEvent struct {
	receipt.LogEvent
	aggregate string
}

// explain returns a finding in words.
func (c *proving) explain(ctx context.Context, f receipt.Finding) (u Unproven, err error) {
	u = Unproven{First: f.First, Last: f.Last, Events: f.Diff.Events}
	switch f.Fault {
	case receipt.Differs:
		return c.explainDiff(ctx, u, f)
	case receipt.Uncovered:
		u.Reason = "passed without a receipt: the checkpoint was changed by hand, or by a worker of a version that keeps none"
	case receipt.Twice:
		u.Reason = "passed twice: the checkpoint was set back by hand"
	case receipt.Ahead:
		u.Reason = "handled, and to be handled again: the checkpoint was set back by hand"
	case receipt.Unknown:
		u.Reason = "not judged: the partition of the events, or the types that the code selected, are not known"
	}
	if u.Operation = f.ExplainedBy(c.resets); u.Operation > 0 {
		u.Reason = "passed by resets, or their receipts were deleted by resets"
	}
	return u, nil
}

// explainDiff names the event, if it is only one.
func (c *proving) explainDiff(ctx context.Context, u Unproven, f receipt.Finding) (Unproven, error) {
	if position, one := f.One(); one {
		e, err := c.eventAfter(ctx, position-1)
		switch there := err == nil && e.Position == position; {
		case err != nil:
			return u, err
		case there && f.Is(receipt.Event{Position: position, ID: e.ID}):
			u.First, u.Last = position, position
		case !there && u.Events > 0:
			u.First, u.Last, u.Reason = position, position, "the event was handled, and the log does not have it any more"
			return u, nil
		}
	}
	switch one := u.First == u.Last; {
	case one && u.Events < 0:
		u.Reason = "the event was not handled"
	case one && u.Events > 0:
		u.Reason = "the event was handled twice"
	case u.Events < 0:
		u.Reason = fmt.Sprintf("%d of these events were not handled", -u.Events)
	case u.Events > 0:
		u.Reason = fmt.Sprintf("%d of these events were handled twice, or the log does not have them any more", u.Events)
	default:
		u.Reason = "as many events were handled as the log has, but not the same ones"
	}
	return u, nil
}
