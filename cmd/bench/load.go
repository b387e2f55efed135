package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

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
