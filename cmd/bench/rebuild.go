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

// byBench is the operator of the measurements.
var byBench = ops.By{Operator: "bench", Reason: "to measure it"}

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
// how fast the shadow is. One worker has both. The three parts are short and take turns, since a machine
// changes its pace.
func rebuild(ctx context.Context, l *lab) (rows []row, err error) {
	err = l.onSite(ctx, func(s *site) error {
		if err := s.fill(ctx, l.size.logs[1]); err != nil {
			return err
		}
		if _, err := s.db.ExecContext(ctx, `CREATE TABLE projection (aggregate_id TEXT PRIMARY KEY, events BIGINT NOT NULL, last BIGINT NOT NULL)`); err != nil {
			return err
		}
		o, err := ops.New(s.db)
		if err != nil {
			return err
		}
		r := rebuilds{
			site: s, ops: o, journal: newJournal(s, notify.channel), live: newRecorder("live"),
			shadow: &rebuilding{projecting: projecting{walker{name: "shadow"}}},
		}
		counted, err := r.run(ctx)
		if err != nil {
			return err
		}
		without, beside := r.lags(r.without), r.lags(r.beside)
		ratio := r.ratio()
		rows = []row{
			{part: "control: the shadow is paused", measured: without.String()},
			{part: "control: the shadow works, nothing is appended", measured: grouped(rate(r.alone)) + " events/s"},
			{part: "beside the shadow", measured: fmt.Sprintf("%s, p99 %.2f times (median of the turns)", beside, ratio), goal: "p99 <= 1.5 times", reached: ratio <= 1.5, counted: counted},
			against("the shadow", rate(r.beside), rate(r.alone), "control", 0.4, 0),
		}
		return nil
	})
	return rows, err
}

// rebuilds are a consumer at the head of a log, a shadow that goes over it, and what was measured of them.
type rebuilds struct {
	site    *site
	ops     *ops.Operator
	journal *journal
	live    *recorder
	shadow  *rebuilding

	without, beside, alone []stretch
}

// stretch is a time, and how many events the shadow handled in it.
type stretch struct {
	from, to time.Time
	handled  int64
}

// run runs both consumers on one worker. It returns how many events the live one was given, each once.
func (r *rebuilds) run(ctx context.Context) (counted int, err error) {
	s := r.site
	if err := r.ops.Shadow(ctx, r.shadow.name, byBench); err != nil {
		return 0, err
	}
	err = s.work(ctx, 1, []consumer.Consumer{following{r.live}, r.shadow}, notify.options(s), func(ctx context.Context) error {
		if err := s.placed(ctx, r.live.name); err != nil {
			return err
		}
		if err := errors.Join(warmUp(ctx, r.journal, r.live), r.journal.connect(ctx, 8), r.journal.settle(ctx, r.live)); err != nil {
			return err
		}
		for range 20 * s.lab.size.passes {
			if err := r.turn(ctx, s.lab.size.rebuild/20); err != nil {
				return err
			}
		}
		return r.journal.settle(ctx, r.live)
	})
	if err != nil {
		return 0, err
	}
	return r.journal.audit(ctx, r.live)
}

// turn measures each part once, for d. It fails if the shadow is not what the parts need.
func (r *rebuilds) turn(ctx context.Context, d time.Duration) error {
	if err := r.ops.Pause(ctx, r.shadow.name, byBench); err != nil {
		return err
	}
	if err := r.loaded(ctx, &r.without, d); err != nil {
		return err
	}
	if n := r.without[len(r.without)-1].handled; n > 0 {
		return fmt.Errorf("the shadow handled %d events while it was paused", n)
	}
	if err := r.ops.Resume(ctx, r.shadow.name, byBench); err != nil {
		return err
	}
	before := r.shadow.handled.Load()
	if err := until(ctx, "the shadow to handle events", func() bool { return r.shadow.handled.Load() > before }); err != nil {
		return err
	}
	if err := r.loaded(ctx, &r.beside, d); err != nil {
		return err
	}
	if err := r.measure(&r.alone, func() error { return pause(ctx, d) }); err != nil {
		return err
	}
	if n := r.site.lab.size.logs[1]; r.shadow.handled.Load() >= int64(n) {
		return fmt.Errorf("the shadow reached the end of the log of %d events and had nothing to do: use -long, which has a longer log", n)
	}
	return nil
}

// loaded measures with appends for d. They begin earlier: the first ones after a rest or after Resume wait
// longer, which a rebuild of hours has once.
func (r *rebuilds) loaded(ctx context.Context, all *[]stretch, d time.Duration) error {
	if err := r.journal.appendFor(ctx, d/4); err != nil {
		return err
	}
	return r.measure(all, func() error { return r.journal.appendFor(ctx, d) })
}

// measure adds to all how long part takes, and how many events the shadow handles meanwhile.
func (r *rebuilds) measure(all *[]stretch, part func() error) error {
	s := stretch{from: time.Now(), handled: -r.shadow.handled.Load()}
	err := part()
	s.to = time.Now()
	s.handled += r.shadow.handled.Load()
	*all = append(*all, s)
	return err
}

// lags returns the lags of the events that were appended meanwhile.
func (r *rebuilds) lags(of []stretch) (all durations) {
	for _, s := range of {
		all = append(all, r.journal.lags(r.live, s.from, s.to)...)
	}
	return all
}

// ratio is the median over the turns of the p99 beside the shadow, divided by that without it. A moment in
// which the machine stands still affects one turn only.
func (r *rebuilds) ratio() float64 {
	var all []float64
	for i := range r.beside {
		beside, without := r.lags(r.beside[i:i+1]).p99(), r.lags(r.without[i:i+1]).p99()
		all = append(all, float64(beside)/float64(without))
	}
	return median(all)
}

// rate returns the events a second.
func rate(of []stretch) float64 {
	var handled int64
	var took time.Duration
	for _, s := range of {
		handled, took = handled+s.handled, took+s.to.Sub(s.from)
	}
	return float64(handled) / took.Seconds()
}

// placed waits until a consumer has a checkpoint: what commits before, a consumer that begins at the
// head is never given.
func (s *site) placed(ctx context.Context, name string) error {
	return eventually(ctx, name+" to be placed", func() (there bool, err error) {
		err = s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM consumer_checkpoints WHERE consumer_name = $1::text)`, name).Scan(&there)
		return there, err
	})
}
