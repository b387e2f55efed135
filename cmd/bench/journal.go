package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// journal is what the writers of a site know: which positions committed, and
// when COMMIT returned.
type journal struct {
	site  *site
	store *storepostgres.Store

	mu         sync.Mutex
	committed  map[int64]time.Time
	rolledBack int
}

// newJournal opens the ledgers for writers that notify if channel says so.
func newJournal(s *site, channel string) *journal {
	return &journal{
		site:      s,
		store:     storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNotifyChannel(channel))),
		committed: map[int64]time.Time{},
	}
}

// payload is what every event carries.
var payload = make([]byte, 200)

// draft is an append that is not committed yet. Each is to an aggregate of
// its own, so that writers do not wait for each other.
type draft struct {
	journal  *journal
	tx       *sql.Tx
	position int64
}

func (j *journal) begin(ctx context.Context) (draft, error) {
	tx, err := j.site.db.BeginTx(ctx, nil)
	if err != nil {
		return draft{}, err
	}
	id := uuid.New()
	result, err := j.store.Append(ctx, tx, store.NoStream(), []store.Event{{
		AggregateType: "Order", AggregateID: id.String(), EventType: "OrderPlaced", EventID: id, Payload: payload,
	}})
	if err != nil {
		return draft{}, errors.Join(err, tx.Rollback())
	}
	return draft{j, tx, result.GlobalPositions[0]}, nil
}

func (d draft) commit() error {
	if err := d.tx.Commit(); err != nil {
		return err
	}
	now := time.Now()
	d.journal.mu.Lock()
	defer d.journal.mu.Unlock()
	d.journal.committed[d.position] = now
	return nil
}

func (d draft) rollBack() error {
	d.journal.mu.Lock()
	d.journal.rolledBack++
	d.journal.mu.Unlock()
	return d.tx.Rollback()
}

// append appends one event and commits, or rolls back after the position was
// drawn.
func (j *journal) append(ctx context.Context, commit bool) error {
	d, err := j.begin(ctx)
	if err != nil {
		return err
	}
	if !commit {
		return d.rollBack()
	}
	return d.commit()
}

// connect appends n events at the same time, so that n writers find their
// connections open and their statements prepared.
func (j *journal) connect(ctx context.Context, n int) error {
	drafts := make([]draft, n)
	for i := range drafts {
		var err error
		if drafts[i], err = j.begin(ctx); err != nil {
			return err
		}
	}
	for _, d := range drafts {
		if err := d.commit(); err != nil {
			return err
		}
	}
	return nil
}

// count returns how many appends were committed.
func (j *journal) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.committed)
}

// head returns the highest position that was committed, and when.
func (j *journal) head() (position int64, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for p, t := range j.committed {
		if p > position {
			position, at = p, t
		}
	}
	return position, at
}

// recorder is a consumer that remembers when it was first given each event.
type recorder struct {
	name string

	mu    sync.Mutex
	at    map[int64]time.Time
	again []int64 // positions that it was given more than once
}

func newRecorder(name string) *recorder { return &recorder{name: name, at: map[int64]time.Time{}} }

func newRecorders(n int) (all []*recorder) {
	for i := range n {
		all = append(all, newRecorder(fmt.Sprintf("consumer_%02d", i+1)))
	}
	return all
}

func asConsumers(recorders []*recorder) (all []consumer.Consumer) {
	for _, r := range recorders {
		all = append(all, r)
	}
	return all
}

func (r *recorder) Name() string { return r.name }

func (r *recorder) Handle(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.at[e.GlobalPosition]; known {
		r.again = append(r.again, e.GlobalPosition)
		return nil
	}
	r.at[e.GlobalPosition] = now
	return nil
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.at)
}

// handled returns when the event was given to the recorder.
func (r *recorder) handled(position int64) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at[position]
}

// firstAbove returns when the first event above a position was handled.
func (r *recorder) firstAbove(position int64) (first time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, at := range r.at {
		if p > position && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// settle waits until every recorder was given as many events as committed.
func (j *journal) settle(ctx context.Context, recorders ...*recorder) error {
	for _, r := range recorders {
		n := j.count()
		if err := until(ctx, fmt.Sprintf("%s to handle %d events", r.name, n), func() bool { return r.count() >= n }); err != nil {
			return errors.Join(err, j.compare(r))
		}
	}
	return nil
}

// lags returns how long after its COMMIT had returned each event that was
// committed between from and to was given to r. A notification may be faster
// than the reply to the COMMIT: that is 0.
func (j *journal) lags(r *recorder, from, to time.Time) (all durations) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for position, committed := range j.committed {
		if at, ok := r.at[position]; ok && !committed.Before(from) && committed.Before(to) {
			all = append(all, max(at.Sub(committed), 0))
		}
	}
	return all
}

// audit compares the ledgers once the workers have stopped: each recorder was
// given every event that was committed, once, and nothing else, and its
// checkpoint covers them, that of each part. It returns how many deliveries that are.
func (j *journal) audit(ctx context.Context, recorders ...*recorder) (deliveries int, err error) {
	head, _ := j.head()
	for _, r := range recorders {
		if err := j.compare(r); err != nil {
			return 0, err
		}
		var checkpoint int64
		if err := j.site.db.QueryRowContext(ctx, `
SELECT min(last_position) FROM consumer_checkpoints WHERE split_at IS NULL AND split_part(consumer_name, '#', 1) = $1::text`, r.name).Scan(&checkpoint); err != nil {
			return 0, fmt.Errorf("checkpoint of %s: %w", r.name, err)
		}
		if checkpoint < head {
			return 0, fmt.Errorf("%s was given position %d, but its checkpoint is %d", r.name, head, checkpoint)
		}
		deliveries += r.count()
	}
	return deliveries, nil
}

func (j *journal) compare(r *recorder) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	var lost, invented []int64
	for position := range j.committed {
		if _, ok := r.at[position]; !ok {
			lost = append(lost, position)
		}
	}
	for position := range r.at {
		if _, ok := j.committed[position]; !ok {
			invented = append(invented, position)
		}
	}
	if len(lost)+len(invented)+len(r.again) > 0 {
		return fmt.Errorf("%s: of %d events lost %s, handled again %s, handled though never committed %s",
			r.name, len(j.committed), some(lost), some(r.again), some(invented))
	}
	if len(j.committed) == 0 {
		return fmt.Errorf("%s: nothing was committed, so nothing was checked", r.name)
	}
	return nil
}

// some shows how many positions there are, and the first.
func some(positions []int64) string {
	if len(positions) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%v)", len(positions), positions[:min(len(positions), 5)])
}
