package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// keyed is a recorder in partitions, whose handler takes its time.
type keyed struct {
	*recorder
	count int
	takes time.Duration
}

func (k *keyed) Partitions() consumer.Partitions { return consumer.Partitions{Count: k.count} }

func (k *keyed) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if k.takes > 0 {
		time.Sleep(k.takes)
	}
	return k.recorder.Handle(ctx, tx, e)
}

// steadily lets workers run a consumer in partitions while appendRate events a second
// are appended for period. It calls during meanwhile, and returns the ledgers and how
// many deliveries were right.
func (s *site) steadily(ctx context.Context, k *keyed, workers int, period time.Duration, during func(ctx context.Context) error) (j *journal, counted int, err error) {
	j = newJournal(s, notify.channel)
	err = s.work(ctx, workers, []consumer.Consumer{k}, notify.options(s), func(ctx context.Context) error {
		if err := s.partitions(ctx, k.count, 0); err != nil {
			return err
		}
		if err := errors.Join(warmUp(ctx, j, k.recorder), j.connect(ctx, 8), j.settle(ctx, k.recorder)); err != nil {
			return err
		}
		done := make(chan error, 1)
		go func() { done <- during(ctx) }()
		err := j.appendFor(ctx, period)
		if err = errors.Join(err, <-done, j.settle(ctx, k.recorder)); err != nil {
			return err
		}
		head, _ := j.head()
		return eventually(ctx, "every partition to be at the head", func() (there bool, err error) {
			err = s.db.QueryRowContext(ctx, `SELECT min(last_position) >= $1::bigint FROM consumer_checkpoints WHERE split_at IS NULL`, head).Scan(&there)
			return there, err
		})
	})
	if err == nil {
		counted, err = j.audit(ctx, k.recorder)
	}
	return j, counted, err
}

// partitionsAtHead measures what partitions cost at the head of the log.
func partitionsAtHead(ctx context.Context, l *lab) (rows []row, err error) {
	var oneLags durations
	var oneStatements float64
	for _, n := range []int{1, 8} {
		var lags durations
		var statements float64
		k := &keyed{recorder: newRecorder("keyed"), count: n}
		err := l.onSite(ctx, func(s *site) error {
			s.wires = &wires{}
			var began, ended time.Time
			j, counted, err := s.steadily(ctx, k, 1, l.size.many, func(ctx context.Context) error {
				before, events := s.wires.statements.Load(), k.recorder.count()
				began = time.Now()
				err := pause(ctx, l.size.many)
				ended = time.Now()
				statements = float64(s.wires.statements.Load()-before) / float64(k.recorder.count()-events)
				return err
			})
			lags = j.lags(k.recorder, began, ended)
			r := row{part: fmt.Sprintf("partitions: %d", n), measured: fmt.Sprintf("%.2f statements an event, %s", statements, lags), counted: counted}
			if n == 1 {
				oneLags, oneStatements = lags, statements
			} else {
				r.goal = "<= 1.5 times one: statements and p99"
				r.reached = statements <= 1.5*oneStatements && float64(lags.p99()) <= 1.5*float64(oneLags.p99())
			}
			rows = append(rows, r)
			return err
		})
		if err != nil {
			return rows, fmt.Errorf("%d partitions: %w", n, err)
		}
	}
	return rows, nil
}

// rescale measures how long events wait while their consumer gets more partitions,
// and fewer.
func rescale(ctx context.Context, l *lab) (rows []row, err error) {
	k := &keyed{recorder: newRecorder("keyed"), count: 4, takes: time.Millisecond}
	const batch = 100 * time.Millisecond // of as many events
	steps := []struct {
		to   int
		most time.Duration // an event may wait

		began, ended time.Time
		took         time.Duration
	}{{to: 4}, {to: 8, most: 2 * batch}, {to: 3, most: time.Second}}
	err = l.onSite(ctx, func(s *site) error {
		o, err := ops.New(s.db)
		if err != nil {
			return err
		}
		period := l.size.many * time.Duration(len(steps))
		j, counted, err := s.steadily(ctx, k, 2, period, func(ctx context.Context) error {
			for i := range steps {
				step := &steps[i]
				step.began = time.Now()
				if err := o.Partition(ctx, k.name, step.to, byBench); err != nil {
					return err
				}
				if err := s.partitions(ctx, step.to, 0); err != nil {
					return err
				}
				step.took = time.Since(step.began)
				if err := pause(ctx, time.Until(step.began.Add(l.size.many))); err != nil {
					return err
				}
				step.ended = time.Now()
			}
			return nil
		})
		for i, step := range steps {
			lags := j.lags(k.recorder, step.began, step.ended)
			r := row{part: fmt.Sprintf("control: %d partitions", step.to), measured: lags.String(), counted: counted}
			if i > 0 {
				r = row{
					part:     fmt.Sprintf("from %d to %d partitions, which took %s", steps[i-1].to, step.to, short(step.took)),
					measured: lags.String(), goal: "max <= " + short(step.most), reached: lags.max() <= step.most,
				}
			}
			rows = append(rows, r)
		}
		return err
	})
	return rows, err
}
