package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// following is a recorder that begins at the head of an old log.
type following struct{ *recorder }

func (following) StartAt() consumer.Start { return consumer.AtHead() }

// rebuilding is a projecting consumer whose events are counted while it works.
type rebuilding struct {
	projecting
	handled atomic.Int64
}

func (r *rebuilding) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	r.handled.Add(1)
	return r.projecting.Handle(ctx, tx, e)
}

// rebuild measures what a shadow that goes over an old log costs a consumer at the head of the log, and
// how fast the shadow is. The parts take turns, since a machine changes its pace.
func rebuild(ctx context.Context, l *lab) (rows []row, err error) {
	err = l.onSite(ctx, func(s *site) error {
		if err := s.fill(ctx, l.size.logs[1]); err != nil {
			return err
		}
		if _, err := s.db.ExecContext(ctx, `CREATE TABLE projection (aggregate_id TEXT PRIMARY KEY, events BIGINT NOT NULL, last BIGINT NOT NULL)`); err != nil {
			return err
		}
		o, err := ops.New(s.db)
		if err == nil {
			err = o.Shadow(ctx, "shadow", ops.By{Operator: "bench", Reason: "to measure it"})
		}
		if err != nil {
			return err
		}
		quiet, alone, beside := rebuilds{kind: "without a rebuild"}, rebuilds{kind: "a rebuild alone"}, rebuilds{kind: "a rebuild beside"}
		for turn := range l.size.passes {
			over := func(name string) *rebuilding { return &rebuilding{projecting: projecting{walker{name: name}}} }
			err := quiet.add(ctx, s, newRecorder(fmt.Sprint("quiet-", turn)), nil)
			if err == nil {
				err = alone.add(ctx, s, nil, over("alone"))
			}
			if err == nil {
				err = beside.add(ctx, s, newRecorder(fmt.Sprint("live-", turn)), over("shadow"))
			}
			if err != nil {
				return err
			}
		}
		ratio := float64(beside.lags.p99()) / float64(quiet.lags.p99())
		rows = []row{
			{part: "control: no rebuild", measured: quiet.lags.String(), counted: quiet.counted},
			{part: "control: a consumer goes over the log alone, without pauses", measured: grouped(alone.rate()) + " events/s"},
			{part: "beside a shadow", measured: fmt.Sprintf("%s, p99 %.1f times", beside.lags, ratio), goal: "p99 <= 1.5 times", reached: ratio <= 1.5, counted: beside.counted},
			against("the shadow", beside.rate(), alone.rate(), "control", 0.4, 0),
		}
		return nil
	})
	return rows, err
}

// rebuilds are measurements of one kind.
type rebuilds struct {
	kind    string
	lags    durations
	rates   []float64
	counted int
}

func (r *rebuilds) add(ctx context.Context, s *site, live *recorder, old *rebuilding) error {
	lags, rate, counted, err := s.rebuilt(ctx, live, old, s.lab.size.rebuild)
	if err != nil {
		return fmt.Errorf("%s: %w", r.kind, err)
	}
	r.lags, r.rates, r.counted = append(r.lags, lags...), append(r.rates, rate), r.counted+counted
	return nil
}

// rate returns the events a second of the consumers that go over the log.
func (r *rebuilds) rate() (mean float64) {
	for _, rate := range r.rates {
		mean += rate / float64(len(r.rates))
	}
	return mean
}

// rebuilt runs a consumer at the head under load, a consumer that goes over the log, or both, for
// period. It returns the lags of the first, and the events a second of the other.
func (s *site) rebuilt(ctx context.Context, live *recorder, old *rebuilding, period time.Duration) (lags durations, rate float64, counted int, err error) {
	var all []consumer.Consumer
	if live != nil {
		all = append(all, following{live})
	}
	if old != nil {
		all = append(all, old)
	}
	j := newJournal(s, notify.channel)
	err = s.work(ctx, 1, all, notify.options(s), func(ctx context.Context) error {
		load := func(ctx context.Context) error { return pause(ctx, period) }
		if live != nil {
			if err := s.placed(ctx, live.name); err != nil {
				return err
			}
			if err := errors.Join(warmUp(ctx, j, live), j.connect(ctx, 8), j.settle(ctx, live)); err != nil {
				return err
			}
			load = func(ctx context.Context) error {
				return paced(ctx, int(appendRate*period.Seconds()), period, func(ctx context.Context, _ int) error { return j.append(ctx, true) })
			}
		}
		handled := func() int64 { return 0 }
		if old != nil {
			handled = old.handled.Load
			if err := until(ctx, "the first events of the log to be handled", func() bool { return handled() > 0 }); err != nil {
				return err
			}
		}
		began, before := time.Now(), handled()
		if err := load(ctx); err != nil {
			return err
		}
		ended := time.Now()
		rate = float64(handled()-before) / ended.Sub(began).Seconds()
		if live == nil {
			return nil
		}
		if err := j.settle(ctx, live); err != nil {
			return err
		}
		lags = j.lags(live, began, ended)
		return nil
	})
	if err == nil && live != nil {
		counted, err = j.audit(ctx, live)
	}
	return lags, rate, counted, err
}

// placed waits until a consumer has a checkpoint: what commits before, a consumer that begins at the
// head is never given.
func (s *site) placed(ctx context.Context, name string) error {
	return eventually(ctx, name+" to be placed", func() (there bool, err error) {
		err = s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM consumer_checkpoints WHERE consumer_name = $1::text)`, name).Scan(&there)
		return there, err
	})
}
