package workertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// storm is one call of Storm.
type storm struct {
	db     *sql.DB
	log    stormLog
	create func() consumer.Consumer
	model  []string
	opts   []worker.Option
	config worker.Config // of opts
	dice   *rand.Rand

	name   string                 // of the consumer
	types  []string               // empty: all
	parts  *consumer.Partitions   // nil: not Partitioned
	start  int64                  // head of the log before the first event
	events []store.PersistedEvent // of types, in order of position
	late   []lateWriter
}

// stormLog is a log to which Storm appends.
type stormLog = interface {
	store.Log
	store.EventStore
}

// lateWriter is a transaction with the last events of an aggregate, which commits during the storm.
type lateWriter struct {
	tx    *sql.Tx
	first int64 // position of the first event
}

const (
	lateWriters = 2
	voidEvery   = 10 // one of so many events is appended after a position that is rolled back
)

// appendAll appends the events in their order. The transactions of the late writers stay open.
func (s *storm) appendAll(ctx context.Context, events []store.Event) (err error) {
	if s.start, err = s.log.GetLatestGlobalPosition(ctx, s.db); err != nil {
		return fmt.Errorf("head of the log: %w", err)
	}
	events = slices.Clone(events)
	for i := range events {
		if events[i].EventID == uuid.Nil {
			events[i].EventID = uuid.New()
		}
	}
	begins, open := s.lateFrom(events), map[aggregate]*sql.Tx{}
	for i, e := range events {
		a := aggregate{e.AggregateType, e.AggregateID}
		tx := open[a]
		if tx == nil {
			if tx, err = s.db.BeginTx(ctx, nil); err != nil {
				return err
			}
		}
		position, err := s.append(ctx, tx, e)
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if from, late := begins[a]; !late || i < from {
			err = tx.Commit()
		} else if i == from {
			open[a] = tx
			s.late = append(s.late, lateWriter{tx, position})
		}
		if err != nil {
			return fmt.Errorf("append: %w", err)
		}
	}
	return nil
}

// append appends an event, sometimes after a position that is rolled back.
func (s *storm) append(ctx context.Context, tx *sql.Tx, e store.Event) (position int64, err error) {
	if s.dice.IntN(voidEvery) == 0 {
		_, err = tx.ExecContext(ctx, `SAVEPOINT void`)
		if err == nil {
			_, err = s.log.Append(ctx, tx, store.Any(), []store.Event{e})
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT void`)
		}
		if err != nil {
			return 0, fmt.Errorf("append in a savepoint: %w", err)
		}
	}
	r, err := s.log.Append(ctx, tx, store.Any(), []store.Event{e})
	if err == nil && len(r.Events) != 1 {
		err = fmt.Errorf("the result has %d events, want 1", len(r.Events))
	}
	if err != nil {
		return 0, fmt.Errorf("append: %w", err)
	}
	if s.wants(e.AggregateType) {
		s.events = append(s.events, r.Events[0])
	}
	return r.Events[0].GlobalPosition, nil
}

// wants reports whether the consumer gets events of an aggregate type.
func (s *storm) wants(kind string) bool { return len(s.types) == 0 || slices.Contains(s.types, kind) }

// lateFrom draws the aggregates of late writers, each with the index of the writer's first event.
// No event of another transaction has one of a late writer as its cause.
func (s *storm) lateFrom(events []store.Event) map[aggregate]int {
	begins := map[aggregate]int{}
	if s.config.GapPolicy == worker.GapWait {
		return begins
	}
	for _, i := range s.dice.Perm(len(events)) {
		a := aggregate{events[i].AggregateType, events[i].AggregateID}
		if _, drawn := begins[a]; drawn || !s.wants(a.kind) {
			continue
		}
		own := map[string]bool{}
		for _, e := range events[i:] {
			if a == (aggregate{e.AggregateType, e.AggregateID}) {
				own[e.EventID.String()] = true
			}
		}
		if !slices.ContainsFunc(events[i:], func(e store.Event) bool {
			return e.CausationID.Valid && own[e.CausationID.String] && !own[e.EventID.String()]
		}) {
			begins[a] = i
		}
		if len(begins) == lateWriters {
			break
		}
	}
	return begins
}

// commitLate commits the first late writer, and forgets it.
func (s *storm) commitLate() error {
	w := s.late[0]
	s.late = s.late[1:]
	if err := w.tx.Commit(); err != nil {
		return fmt.Errorf("commit of a late writer: %w", err)
	}
	return nil
}

// reordered returns the consumer's events in the opposite of their order, as far as the guarantees
// allow: an event comes after the events of its aggregate that are before it, and after its cause.
func (s *storm) reordered() []store.PersistedEvent {
	before := s.predecessors()
	taken, order := make([]bool, len(s.events)), make([]store.PersistedEvent, 0, len(s.events))
	for range s.events {
		for i := len(s.events) - 1; i >= 0; i-- {
			if !taken[i] && !slices.ContainsFunc(before[i], func(j int) bool { return !taken[j] }) {
				taken[i], order = true, append(order, s.events[i])
				break
			}
		}
	}
	return order
}

// predecessors returns for each event of the consumer the indexes of the events that come before it.
func (s *storm) predecessors() [][]int {
	last, index := map[any]int{}, map[string]int{}
	before := make([][]int, len(s.events))
	for i, e := range s.events {
		groups := []any{aggregate{e.AggregateType, e.AggregateID}}
		if s.config.GapPolicy == worker.GapWait && s.parts != nil {
			groups = append(groups, s.parts.Key.Of(e))
		}
		for _, g := range groups {
			if j, ok := last[g]; ok {
				before[i] = append(before[i], j)
			}
			last[g] = i
		}
		if j, ok := index[e.CausationID.String]; ok && e.CausationID.Valid && (s.parts == nil || s.parts.Key.Of(e) == s.parts.Key.Of(s.events[j])) {
			before[i] = append(before[i], j)
		}
		index[e.EventID.String()] = i
	}
	return before
}
