package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// unrelatedRate is how many appends a second there are; every tenth rolls back.
const unrelatedRate = 200

// unrelated compares lags with and without a transaction that is open all the
// time but has nothing to do with the log.
func unrelated(ctx context.Context, l *lab) (rows []row, err error) {
	parts := []string{"control: none", "in this database", "in another database", "control: none, again"}
	var lags [4]durations
	var counted [4]int
	for i, part := range parts {
		err := l.onSite(ctx, func(s *site) error {
			switch i {
			case 1:
				return s.withTransaction(ctx, func() (err error) { lags[i], counted[i], err = l.steady(ctx, s); return err })
			case 2:
				return l.onSite(ctx, func(other *site) error {
					return other.withTransaction(ctx, func() (err error) { lags[i], counted[i], err = l.steady(ctx, s); return err })
				})
			default:
				lags[i], counted[i], err = l.steady(ctx, s)
				return err
			}
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part, err)
		}
	}
	most := func(q float64) time.Duration { return max(lags[0].quantile(q), lags[3].quantile(q)) * 3 / 2 }
	for i, part := range parts {
		x := row{part: part, measured: lags[i].String(), counted: counted[i]}
		if i == 1 || i == 2 {
			x.goal, x.reached = "p50, p99 <= 1.5 x control", lags[i].p50() <= most(0.50) && lags[i].p99() <= most(0.99)
		}
		rows = append(rows, x)
	}
	return rows, nil
}

// withTransaction keeps a transaction open that has written to a table of its
// own.
func (s *site) withTransaction(ctx context.Context, during func() error) error {
	if _, err := s.db.ExecContext(ctx, `CREATE TABLE unrelated (i INT)`); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO unrelated VALUES (1)`); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return errors.Join(during(), tx.Rollback())
}

// steady measures the lag at a steady rate.
func (l *lab) steady(ctx context.Context, s *site) (lags durations, counted int, err error) {
	j, r := newJournal(s, notify.channel), newRecorder("unrelated")
	err = s.work(ctx, 1, asConsumers([]*recorder{r}), s.notify(), func(ctx context.Context) error {
		if err := warmUp(ctx, j, r); err != nil {
			return err
		}
		began := time.Now()
		n := int(unrelatedRate * l.size.unrelated.Seconds())
		err := paced(ctx, n, l.size.unrelated, func(ctx context.Context, i int) error { return j.append(ctx, i%10 != 0) })
		if err == nil {
			err = j.settle(ctx, r)
		}
		lags = j.lags(r, began, time.Now())
		return err
	})
	if err == nil {
		counted, err = j.audit(ctx, r)
	}
	return lags, counted, err
}
