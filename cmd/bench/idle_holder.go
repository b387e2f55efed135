package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker"
)

// idleHolder lets a transaction that has drawn a position stay idle among
// many that roll back: none of their positions is its own.
func idleHolder(ctx context.Context, l *lab) (rows []row, err error) {
	err = l.onSite(ctx, func(s *site) error {
		j, all := newJournal(s, notify.channel), newRecorders(2)
		opts := append(s.notify(), worker.WithStaleGapThreshold(l.size.threshold))
		var lags durations
		var wentOn time.Duration
		var open int
		err := s.work(ctx, 1, asConsumers(all), opts, func(ctx context.Context) error {
			if err := warmUp(ctx, j, all...); err != nil {
				return err
			}
			holder, err := j.begin(ctx)
			if err != nil {
				return err
			}
			began := time.Now()
			err = paced(ctx, 2*l.size.pairs, l.size.holder, func(ctx context.Context, i int) error { return j.append(ctx, i%2 == 0) })
			if err == nil {
				err = j.settle(ctx, all...)
			}
			if err != nil {
				return err
			}
			for _, r := range all {
				first := r.firstAbove(holder.position)
				wentOn = max(wentOn, first.Sub(began))
				lags = append(lags, j.lags(r, first, time.Now())...)
			}
			if open, err = s.mostOpen(ctx); err != nil {
				return err
			}
			return errors.Join(holder.commit(), j.settle(ctx, all...))
		})
		if err != nil {
			return err
		}
		counted, err := j.audit(ctx, all...)
		most, lagMost, openMost := l.size.threshold+time.Second, 100*time.Millisecond, 10
		rows = []row{
			{
				part:     fmt.Sprintf("idle %s, %s rollbacks: went on", short(l.size.holder), grouped(j.rolledBack)),
				measured: "after " + short(wentOn), goal: thresholdGoal(l, ""), reached: wentOn <= most, counted: counted,
			},
			{part: "lag from then on", measured: lags.String(), goal: "p99 <= " + short(lagMost), reached: lags.p99() <= lagMost},
			{part: "audit rows, of one consumer", measured: fmt.Sprintf("%d open in the end", open), goal: fmt.Sprintf("< %d", openMost), reached: open < openMost},
		}
		return err
	})
	return rows, err
}

// mostOpen returns how many open ranges the consumer with the most has.
func (s *site) mostOpen(ctx context.Context) (n int, err error) {
	err = s.db.QueryRowContext(ctx, `
SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM consumer_gap_skips WHERE state = 'open' GROUP BY consumer_name) AS c`).Scan(&n)
	return n, err
}
