package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// latency measures single appends far enough apart not to meet.
func latency(ctx context.Context, l *lab) (rows []row, err error) {
	var h heard
	var bare durations
	lags, counted, err := l.singles(ctx, notify, func(s *site, j *journal, during func() error) error {
		err := s.beside(ctx, h.listen, during)
		bare = h.lags(j, l.size.appends)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	rows = append(rows,
		row{
			part: "notify", measured: lags.String(), counted: counted,
			goal: "p50 <= 1 ms, p99 <= 3 ms", reached: lags.p50() <= time.Millisecond && lags.p99() <= 3*time.Millisecond,
		},
		row{part: "control: a bare LISTEN hears of them", measured: bare.String()},
	)
	lags, counted, err = l.singles(ctx, poll, func(_ *site, _ *journal, during func() error) error { return during() })
	if err != nil {
		return rows, fmt.Errorf("poll: %w", err)
	}
	return append(rows, row{
		part: "poll", measured: lags.String(), counted: counted,
		goal: "p99 <= DispatcherInterval + 3 ms", reached: lags.p99() <= poll.latency+3*time.Millisecond,
	}), nil
}

// singles appends now and then, with a control around it.
func (l *lab) singles(ctx context.Context, d dispatcher, control func(*site, *journal, func() error) error) (lags durations, counted int, err error) {
	err = l.onSite(ctx, func(s *site) error {
		j, r := newJournal(s, d.channel), newRecorder("latency")
		err := s.work(ctx, 1, asConsumers([]*recorder{r}), d.options(s), func(ctx context.Context) error {
			return control(s, j, func() error {
				if err := warmUp(ctx, j, r); err != nil {
					return err
				}
				began := time.Now()
				for range l.size.appends {
					// 20 ms on average, and in no step with the dispatcher.
					if err := pause(ctx, 10*time.Millisecond+rand.N(20*time.Millisecond)); err != nil {
						return err
					}
					if err := j.append(ctx, true); err != nil {
						return err
					}
				}
				err := j.settle(ctx, r)
				lags = j.lags(r, began, time.Now())
				return err
			})
		})
		if err == nil {
			counted, err = j.audit(ctx, r)
		}
		return err
	})
	return lags, counted, err
}

// behind is how many events follow the append that rolls back.
const behind = 20

// rollback measures what a rolled-back append costs the events behind it.
func rollback(ctx context.Context, l *lab) (rows []row, err error) {
	for _, x := range []struct {
		part string
		dispatcher
		gap  bool
		goal string
		most time.Duration
	}{
		{"notify", notify, true, "p99 <= 20 ms", 20 * time.Millisecond},
		{"control: notify, none rolls back", notify, false, "", 0},
		{"poll", poll, true, "p99 <= DispatcherInterval + 20 ms", poll.latency + 20*time.Millisecond},
	} {
		took, counted, err := l.rounds(ctx, x.dispatcher, x.gap)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", x.part, err)
		}
		rows = append(rows, row{
			part: x.part, measured: took.String(),
			goal: x.goal, reached: took.p99() <= x.most, counted: counted,
		})
	}
	return rows, nil
}

func (l *lab) rounds(ctx context.Context, d dispatcher, gap bool) (took durations, counted int, err error) {
	err = l.onSite(ctx, func(s *site) error {
		j, r := newJournal(s, d.channel), newRecorder("rollback")
		err := s.work(ctx, 1, asConsumers([]*recorder{r}), d.options(s), func(ctx context.Context) error {
			if err := warmUp(ctx, j, r); err != nil {
				return err
			}
			for range l.size.rounds {
				if err := pause(ctx, rand.N(d.latency+10*time.Millisecond)); err != nil {
					return err
				}
				t, err := round(ctx, j, r, gap)
				if err != nil {
					return err
				}
				took = append(took, t)
			}
			return nil
		})
		if err == nil {
			counted, err = j.audit(ctx, r)
		}
		return err
	})
	return took, counted, err
}

func round(ctx context.Context, j *journal, r *recorder, gap bool) (time.Duration, error) {
	if gap {
		if err := j.append(ctx, false); err != nil {
			return 0, err
		}
	}
	for range behind {
		if err := j.append(ctx, true); err != nil {
			return 0, err
		}
	}
	if err := j.settle(ctx, r); err != nil {
		return 0, err
	}
	last, committed := j.head()
	return max(r.handled(last).Sub(committed), 0), nil
}

const writers = 20

// load measures the lag while writers do all they can.
func load(ctx context.Context, l *lab) (rows []row, err error) {
	for _, d := range []dispatcher{notify, poll} {
		var lags, trips, transactions durations
		var counted, rolledBack int
		err := l.onSite(ctx, func(s *site) error {
			j, r := newJournal(s, d.channel), newRecorder("load")
			err := s.work(ctx, 1, asConsumers([]*recorder{r}), d.options(s), func(ctx context.Context) (err error) {
				if err := errors.Join(warmUp(ctx, j, r), j.connect(ctx, writers), j.settle(ctx, r)); err != nil {
					return err
				}
				began := time.Now()
				if trips, transactions, err = l.storm(ctx, s, j); err == nil {
					err = j.settle(ctx, r)
				}
				lags, rolledBack = j.lags(r, began, time.Now()), j.rolledBack
				return err
			})
			if err == nil {
				counted, err = j.audit(ctx, r)
			}
			return err
		})
		if err != nil {
			return rows, fmt.Errorf("%s: %w", d.name, err)
		}
		most := d.latency + 100*time.Millisecond
		rows = append(rows,
			row{part: d.name, measured: lags.String(), goal: "p99 <= " + short(most), reached: lags.p99() <= most, counted: counted},
			row{
				part:     fmt.Sprintf("control: %s commits/s, %s rollbacks/s took", perSecond(len(lags), l.size.load), perSecond(rolledBack, l.size.load)),
				measured: transactions.String(),
			},
			row{part: "control: a bare round trip meanwhile", measured: trips.String()})
	}
	return rows, nil
}

// storm lets the writers append as fast as they can, and returns how long a
// statement takes meanwhile that does nothing, and how long their transactions.
// No event can be handled before those have ended that may own a position
// below it.
func (l *lab) storm(ctx context.Context, s *site, j *journal) (trips, transactions durations, err error) {
	var control roundTrips
	var mu sync.Mutex
	began := time.Now()
	err = s.beside(ctx, control.measure, func() error {
		return crowd(ctx, writers, func(ctx context.Context) (bool, error) {
			begin := time.Now()
			err := j.append(ctx, rand.Float64() >= 0.2)
			took := time.Since(begin)
			mu.Lock()
			defer mu.Unlock()
			transactions = append(transactions, took)
			return time.Since(began) < l.size.load, err
		})
	})
	return durations(control), transactions, err
}

func perSecond(n int, d time.Duration) string { return grouped(float64(n) / d.Seconds()) }

// crowd runs step in n goroutines until it says that it has enough, or fails.
func crowd(ctx context.Context, n int, step func(context.Context) (more bool, err error)) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				more, err := step(ctx)
				if err != nil {
					fail(err)
				}
				if !more {
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
