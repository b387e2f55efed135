package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// versionOps are the operations with which consumers begin, and one takes over from another.
type versionOps struct{ *consumerCore }

// Shadow lets a consumer that is not deployed yet begin as a shadow, at the first event. A shadow
// handles all events, and [consumer.Delivery] has Replay and Shadow set for each: effects outside of
// its tables are those of another consumer, until [Operator.Switch]. [jobs.Client.EnqueueFor]
// enqueues nothing. So the next version of a projection, under another name, builds its tables beside
// the version that is in use.
//
// Call Shadow, then deploy the code, with this version of the library or a later one. A StartAt of
// the consumer has no effect. Shadow refuses a consumer that has run with [ErrExists]. A consumer that
// declares its projection needs no Shadow, see [consumer.Projected].
func (o *versionOps) Shadow(ctx context.Context, consumer string, by By) error {
	v := onConsumer(KindShadow, consumer, by)
	return o.change(ctx, v, checkConsumer(consumer), func(tx *sql.Tx) (int64, error) {
		return o.begin(ctx, tx, v, 0, delivered.Shadow(), struct{}{})
	})
}

type beginDetail struct {
	Position int64 `json:"position"`
	Settled  int64 `json:"settled"`
}

// Begin lets a consumer that is not deployed yet begin with the first event above the position after.
// Then deploy the code. A StartAt of the consumer has no effect. If the code declares a projection of
// which another consumer has the effects, the new one becomes a shadow, see [consumer.Projected].
//
// after may not exceed the settled position, since events that appear below it later would be lost. A
// [NotSettledError] has the settled position. Begin refuses a consumer that has run with [ErrExists].
func (o *versionOps) Begin(ctx context.Context, consumer string, after int64, by By) error {
	v := onConsumer(KindBegin, consumer, by)
	invalid := checkConsumer(consumer)
	if after < 0 {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: position %d is below 0, which is the beginning", ErrInvalid, after))
	}
	return o.change(ctx, v, invalid, func(tx *sql.Tx) (int64, error) {
		settled, err := frontier.Settled(ctx, tx, sequenced{o.t}, o.t.Settled)
		if err == nil && after > settled {
			err = &NotSettledError{To: after, Settled: settled}
		}
		if err != nil {
			return 0, err
		}
		return o.begin(ctx, tx, v, after, delivered.Begun(), beginDetail{after, settled})
	})
}

// begin inserts the checkpoint of a new consumer, and records the operation.
func (o *versionOps) begin(ctx context.Context, tx *sql.Tx, v *verb, after int64, effects delivered.Borders, detail any) (int64, error) {
	if err := setLimits(ctx, tx); err != nil {
		return 0, err
	}
	n, err := exec(ctx, tx, "insert its checkpoint", `
INSERT INTO `+o.t.Checkpoints.SQL()+` (consumer_name, last_position, effects) VALUES ($1::text, $2::bigint, $3::jsonb)
ON CONFLICT (consumer_name) DO NOTHING`, v.Consumer, after, effects.String())
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, takenError(v.Consumer, o.t.Checkpoints)
	}
	return o.record(ctx, tx, v.Operation, detail)
}

// Switch lets a shadow take over the effects of a consumer, which becomes a shadow. The same call
// with the names exchanged switches back. Over both consumers, each event that both select has its
// effects once, also an event that appears late. What an operator has skipped or discarded has none.
// The events of a type that only the shadow selects have effects from its position at the Switch on.
//
// Switch refuses versions of different projections with [ErrInvalid], see [consumer.Projected]. It does
// not check that the shadow has caught up: see [Operator.Compare].
//
// within runs in the same transaction, for example to replace the view that readers use. Its
// statements wait a second for a lock. It must leave role and search_path as they were, and send a
// statement within any 15 seconds. It may run several times. nil does nothing.
//
// Both consumers may run. While the shadow has passed an event that the other has still to handle,
// Switch holds the shadow, at first for three seconds at a time, later for up to 12. It also tries
// again while within waits for a lock, until ctx ends. If that does not end, pause the shadow until the
// other consumer has handled the event. Dead letters of the other consumer that the shadow has handled
// are refused with [ErrInvalid]: retry or discard them before.
//
// IfRevision refers to the shadow. Both consumers have a record of the Switch.
func (o *versionOps) Switch(ctx context.Context, from, to string, by By, within func(ctx context.Context, tx *sql.Tx) error) error {
	v := onConsumer(KindSwitch, to, by)
	invalid := checkConsumer(to)
	if err := checkConsumer(from); err != nil {
		invalid = errtext.Join(invalid, fmt.Errorf("the other consumer: %w", err))
	} else if from == to {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: both consumers are %s", ErrInvalid, errtext.Value(to)))
	}
	tries := 0
	return untilReady(ctx, 0, func() error {
		limit := holdOf(tries)
		tries++
		return o.change(ctx, v, invalid, func(tx *sql.Tx) (id int64, err error) {
			s := switching{consumerTx: o.in(tx)}
			if err := s.hold(ctx, from, to, limit); err != nil {
				return 0, err
			}
			if err := s.call(ctx, within); err != nil { // before the swap: a within that commits must not commit it
				return 0, err
			}
			if err := s.swap(ctx); err != nil {
				return 0, err
			}
			detail := switchDetail{From: from, To: to, FromPosition: lowest(s.live), ToPosition: lowest(s.shadow)}
			for _, at := range slices.Concat(s.live, s.shadow) {
				op := v.Operation
				op.Consumer = at.consumer
				if id, err = o.record(ctx, tx, op, detail); err != nil {
					return 0, err
				}
			}
			return id, nil
		})
	})
}

// holdOf returns how long a try may hold the shadow. Under overload, the shadow moves between two holds
// by more than the other consumer catches up in a short one.
func holdOf(tries int) time.Duration {
	return min(switchHold<<min(tries, 10), maxSwitchHold)
}

// untilReady repeats a try while it returns a *notYet, until ctx ends or for limit; 0: no limit. Within
// a limit, tries become rarer, since a consumer waits during each. untilReady returns the last *notYet
// rather than the end of ctx, since it says what was waited for. A try that ctx cuts off may also find a
// closed connection or the end of its transaction.
func untilReady(ctx context.Context, limit time.Duration, try func() error) error {
	began := time.Now()
	for last := error(nil); ; {
		err := try()
		var wait *notYet
		switch {
		case errors.As(err, &wait):
			pause := max(wait.pause, readyPause)
			if limit > 0 {
				pause = max(pause, time.Since(began)/8)
			}
			if last = err; limit > 0 && time.Since(began) > limit || !backoff.Sleep(ctx, pause) {
				return err
			}
		case last != nil && isCutOff(ctx, err) && !errors.As(err, new(*UnknownOutcomeError)):
			return last
		default:
			return err
		}
	}
}

const (
	readyPause = 50 * time.Millisecond
	lockPause  = time.Second     // in which both consumers and readers go on
	switchHold = 3 * time.Second // doubled from try to try, up to maxSwitchHold

	maxSwitchHold = 12 * time.Second
	switchLock    = "1s" // lock_timeout of within, during which both consumers wait
)

type switchDetail struct {
	From         string `json:"from"`
	To           string `json:"to"`
	FromPosition int64  `json:"from_position"` // of the unit with the lowest position
	ToPosition   int64  `json:"to_position"`
}

// notYet refuses a try that may succeed a moment later.
type notYet struct {
	err   error
	pause time.Duration // before the next try; 0: readyPause
}

func (e *notYet) Error() string { return e.err.Error() }

func (e *notYet) Unwrap() error { return e.err }

// switching is the transaction of a switch.
type switching struct {
	consumerTx
	live, shadow []locked
	taken        []delivered.Borders // what each unit of the shadow gets
}

// hold locks the shadow, so that it does not advance, until the other consumer is far enough, for limit
// at most.
func (s *switching) hold(ctx context.Context, from, to string, limit time.Duration) (err error) {
	s.shadow, err = s.lock(ctx, to)
	switch {
	case err != nil:
		return err
	case !isShadow(s.shadow): // before it waits for the other consumer, which a switch in that direction may hold
		return errNoShadow
	}
	if err := s.checkProjections(ctx, from, to); err != nil {
		return err
	}
	err = untilReady(ctx, limit, func() error {
		if _, err := exec(ctx, s.tx, "hold the shadow", `SAVEPOINT held`); err != nil {
			return err
		}
		err := s.lockLive(ctx, from)
		if err == nil {
			err = s.take(ctx)
		}
		if errors.As(err, new(*notYet)) {
			if _, failed := exec(ctx, s.tx, "let the other consumer go on", `ROLLBACK TO SAVEPOINT held`); failed != nil && ctx.Err() == nil {
				return failed
			}
		}
		return err
	})
	if err == nil {
		_, err = exec(ctx, s.tx, "hold both", `RELEASE SAVEPOINT held`) // or within could release the locks
	}
	return err
}

// checkProjections refuses versions of different projections. WaitFor could then find no version that
// is in use.
func (s *switching) checkProjections(ctx context.Context, from, to string) error {
	var old, next string
	if err := s.tx.QueryRowContext(ctx, `
SELECT coalesce(max(scope->>'projection') FILTER (WHERE name = $1::text), ''), coalesce(max(scope->>'projection') FILTER (WHERE name = $2::text), '')
FROM (SELECT split_part(consumer_name, '#', 1) AS name, scope FROM `+s.t.Checkpoints.SQL()+` WHERE split_at IS NULL) AS units`, from, to).Scan(&old, &next); err != nil {
		return fmt.Errorf("read the projections: %w", err)
	}
	if old != next {
		return fmt.Errorf("%w: %s is recorded as a version of projection %s, and %s of %s: deploy code of both with the same Projection", ErrInvalid, errtext.Value(from), errtext.Value(old), errtext.Value(to), errtext.Value(next))
	}
	return nil
}

// lockLive locks the consumer that has the effects.
func (s *switching) lockLive(ctx context.Context, from string) (err error) {
	if s.live, err = s.lockUnits(ctx, from); err == nil {
		err = refuseRenamed(ctx, s.consumerTx, from, s.live[0].position)
	}
	switch {
	case err != nil:
		return fmt.Errorf("the other consumer %s: %w", errtext.Value(from), err)
	case isShadow(s.live):
		return fmt.Errorf("%w: %s is a shadow, too: name the consumer that has the effects", ErrInvalid, errtext.Value(from))
	}
	return nil
}

func isShadow(units []locked) bool {
	return !slices.ContainsFunc(units, func(at locked) bool { return !at.effects.IsShadow() })
}

// take computes the borders that the shadow gets, unless effects would be lost.
func (s *switching) take(ctx context.Context) error {
	live, err := s.pendingUnits(ctx, s.live)
	if err != nil {
		return err
	}
	shadow, err := s.pendingUnits(ctx, s.shadow)
	if err != nil {
		return err
	}
	s.taken = nil
	for _, to := range shadow {
		var parts []delivered.Part
		for _, from := range live {
			_, slots, _ := partition.Parse(from.consumer)
			had := from.effects.Pass(slots, from.key, from.position, from.pending)
			if err := s.checkOwed(ctx, had.Owed(from.position, from.pending, to.position), from.locked, to); err != nil {
				return err
			}
			parts = append(parts, delivered.Part{Slots: slots, Borders: had.Dismiss(from.position, from.pending, to.position)})
		}
		had := parts[0].Borders
		if len(parts) > 1 {
			had = delivered.Join(parts, live[0].key)
		}
		if err := s.checkKey(ctx, had, to.locked); err != nil {
			return err
		}
		s.taken = append(s.taken, had.Taken())
	}
	return nil
}

// swap gives the borders of each consumer to the other.
func (s *switching) swap(ctx context.Context) error {
	for i, to := range s.shadow {
		if err := s.setEffects(ctx, to, s.taken[i]); err != nil {
			return err
		}
	}
	for _, from := range s.live {
		if err := s.setEffects(ctx, from, delivered.Shadow()); err != nil {
			return err
		}
	}
	return nil
}

// pendingUnit is a unit with what it has passed without handling it.
type pendingUnit struct {
	locked
	pending []store.Range
}

func (s *switching) pendingUnits(ctx context.Context, units []locked) (all []pendingUnit, err error) {
	for _, at := range units {
		pending, err := pendingOf(ctx, s.consumerTx, at.consumer)
		if err != nil {
			return nil, err
		}
		all = append(all, pendingUnit{at, pending})
	}
	return all, nil
}

// checkKey refuses borders that differ by key if the shadow's events have another key.
func (s *switching) checkKey(ctx context.Context, had delivered.Borders, to locked) error {
	if len(had) < 2 {
		return nil
	}
	key, err := keyOf(ctx, s.consumerTx, to)
	if err == nil && key != had[0].Key {
		of := errtext.Value(partition.Consumer(s.live[0].consumer))
		err = &notYet{err: fmt.Errorf("the partitions of %s have not handled the same events, and %s has another key: call Partition of %s with 1, Switch when it is merged, and then Partition with 0", of, errtext.Value(to.consumer), of)}
	}
	return err
}

// checkOwed refuses a switch if to has passed positions whose effects from is still to have.
func (s *switching) checkOwed(ctx context.Context, owed []store.Range, from locked, to pendingUnit) error {
	owed = delivered.Without(owed, to.pending)
	void, err := s.void(ctx, to.consumer, owed)
	if err != nil {
		return err
	}
	lost := delivered.Without(owed, void)
	if len(lost) == 0 {
		return nil
	}
	var letter bool // which no one has asked to handle again
	if err := s.tx.QueryRowContext(ctx, `
SELECT EXISTS (SELECT FROM `+s.t.DeadLetters.SQL()+` WHERE consumer_name = $1::text AND global_position = $2::bigint AND NOT replay AND retry_at IS NULL)`, from.consumer, lost[0].First).Scan(&letter); err != nil {
		return fmt.Errorf("read its dead letters: %w", err)
	}
	if letter {
		return fmt.Errorf("%w: %s has a dead letter at position %d, which %s has handled without its effect: retry or discard the dead letter", ErrInvalid, errtext.Value(from.consumer), lost[0].First, errtext.Value(to.consumer))
	}
	return &notYet{err: fmt.Errorf("%s is at position %d, and %s at %d has passed position %d without its effect, which %s is still to have: pause %s until then, or Reset it to %d", errtext.Value(from.consumer), from.position,
		errtext.Value(to.consumer), to.position, lost[0].First, errtext.Value(from.consumer), errtext.Value(to.consumer), lost[0].First-1)}
}

// void returns those of some positions that a unit has proven to be void. Another unit may be in
// doubt of them, as long as a transaction is open. An audited range may also have events, which the
// unit has handled.
func (s *switching) void(ctx context.Context, unit string, of []store.Range) ([]store.Range, error) {
	if len(of) == 0 {
		return nil, nil
	}
	ranges := pgdriver.Columns(func(r *store.Range) []any { return []any{&r.First, &r.Last} })
	audited, err := pgdriver.QueryAll(ctx, s.tx, ranges, `
SELECT gap_position, gap_end FROM `+s.t.GapSkips.SQL()+` WHERE consumer_name = $1::text AND state = 'void' AND gap_position <= $3::bigint AND gap_end >= $2::bigint`, unit, of[0].First, of[len(of)-1].Last)
	if err != nil {
		return nil, fmt.Errorf("read what is void: %w", err)
	}
	if len(delivered.Without(of, audited)) > 0 {
		return nil, nil // so it is not all void
	}
	text, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	events, err := pgdriver.QueryAll(ctx, s.tx, ranges, `
SELECT e.global_position, e.global_position FROM json_to_recordset($1::text::json) AS r (first bigint, last bigint)
JOIN `+s.t.Events.SQL()+` AS e ON e.global_position BETWEEN r.first AND r.last ORDER BY 1 LIMIT 1`, string(text))
	if err != nil {
		return nil, fmt.Errorf("read the events of what is void: %w", err)
	}
	return delivered.Without(of, events), nil
}

// setEffects sets the borders of a unit. Its worker then reads them before the next batch.
func (s *switching) setEffects(ctx context.Context, at locked, had delivered.Borders) error {
	_, err := exec(ctx, s.tx, "exchange the effects", `
UPDATE `+s.t.Checkpoints.SQL()+` SET effects = $2::jsonb WHERE consumer_name = $1::text`, at.consumer, had.String())
	return err
}

// call calls within, which must not end the transaction.
func (s *switching) call(ctx context.Context, within func(ctx context.Context, tx *sql.Tx) error) error {
	if within == nil {
		return nil
	}
	const current = `SELECT txid_current()::text`
	var began, ended string
	if err := s.tx.QueryRowContext(ctx, current+`, set_config('lock_timeout', '`+switchLock+`', true)`).Scan(&began, new(string)); err != nil {
		return err
	}
	err := within(ctx, s.tx)
	after := s.tx.QueryRowContext(ctx, current+`, set_config('lock_timeout', '0', true)`).Scan(&ended, new(string))
	switch {
	case after == nil && began != ended, errors.Is(after, sql.ErrTxDone) && ctx.Err() == nil:
		return errSwitchEnded
	case pgdriver.SQLState(err) == pgdriver.LockNotAvailable:
		return &notYet{fmt.Errorf("within: a lock was not free within %s: %w", switchLock, err), lockPause}
	case err != nil:
		return fmt.Errorf("within: %w", err)
	case pgdriver.SQLState(after) == pgdriver.InFailedTransaction:
		return errors.New("within returned no error, though a statement of its failed and aborted the transaction: return that error")
	}
	return after
}

var (
	errNoShadow    = &refusal{ErrUnchanged, "it is no shadow, it has the effects already: exchange the names to switch back; a new consumer becomes a shadow by Shadow, before its code is deployed"}
	errSwitchEnded = errors.New("within ended the transaction, which belongs to Switch: what it did may be committed, and the consumers were not switched; remove the Commit, Rollback or equivalent SQL from it")
)
