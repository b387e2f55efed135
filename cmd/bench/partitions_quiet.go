package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
)

// quietRate is how many appends a second a quiet log gets.
const quietRate = 10

// partitionsOfQuietLog measures what partitions cost that have no event most of the time, and
// how long another process waits until all of them have passed an event.
func partitionsOfQuietLog(ctx context.Context, l *lab) (rows []row, err error) {
	var few float64
	for _, n := range []int{8, 64} {
		var each float64
		var waits durations
		var counted int
		err := l.onSite(ctx, func(s *site) (err error) {
			each, waits, counted, err = l.quietly(ctx, s, n)
			return err
		})
		if err != nil {
			return rows, fmt.Errorf("%d partitions: %w", n, err)
		}
		r := row{part: fmt.Sprintf("partitions: %d", n), measured: fmt.Sprintf("%.0f transactions/s; Waiter: %s", each, waits), counted: counted}
		if few == 0 {
			few = each
		} else {
			r.goal, r.reached = "<= 2 times those of 8", each <= 2*few
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// quietly returns how many transactions a second the server counts without the appends', and
// how long a Waiter has waited for each of some events.
func (l *lab) quietly(ctx context.Context, s *site, n int) (each float64, waits durations, counted int, err error) {
	k := &keyed{recorder: newRecorder("keyed"), count: n}
	j, waiter := newJournal(s, notify.channel), worker.NewWaiter(s.db)
	period := 2 * l.size.many
	appends := max(1, int(quietRate*period.Seconds()))
	err = s.work(ctx, 1, []consumer.Consumer{k}, notify.options(s), func(ctx context.Context) error {
		if err := errors.Join(s.partitions(ctx, n, 0), warmUp(ctx, j, k.recorder)); err != nil {
			return err
		}
		before, err := l.transactions(ctx, s.name)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := paced(ctx, appends, period, func(ctx context.Context, _ int) error { return j.append(ctx, true) }); err != nil {
			return err
		}
		took := time.Since(began).Seconds()
		after, err := l.transactions(ctx, s.name)
		if err != nil {
			return err
		}
		each = float64(after-before-int64(appends)) / took
		for range appends {
			if err := j.append(ctx, true); err != nil {
				return err
			}
			at, _ := j.head()
			began := time.Now()
			if err := waiter.WaitFor(ctx, k.name, at); err != nil {
				return err
			}
			waits = append(waits, time.Since(began))
		}
		return j.settle(ctx, k.recorder)
	})
	if err == nil {
		counted, err = j.audit(ctx, k.recorder)
	}
	return each, waits, counted, err
}
