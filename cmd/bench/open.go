package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker"
)

const (
	staleConsumers = 4
	staleBehind    = 11 // appends while nothing is known of the open transaction; 5 before, 5 afterwards
	staleAfter     = 5
)

// stale lets a transaction stay open that has drawn a position.
func stale(ctx context.Context, l *lab) (rows []row, err error) {
	err = l.onSite(ctx, func(s *site) error {
		j, all := newJournal(s, poll.channel), newRecorders(staleConsumers)
		opts := append(s.poll(), worker.WithStaleGapThreshold(l.size.threshold))
		var story staleStory
		err := s.work(ctx, 2, asConsumers(all), opts, func(ctx context.Context) error { return story.tell(ctx, j, all) })
		if err != nil {
			return err
		}
		afterwards, err := s.doubts(ctx)
		if err != nil {
			return err
		}
		counted, err := j.audit(ctx, all...)
		most := l.size.threshold + time.Second
		want := [2]string{fmt.Sprintf("%d open", staleConsumers), fmt.Sprintf("%d late", staleConsumers)}
		rows = []row{
			{
				part:     fmt.Sprintf("open %s: each of %d consumers handled", short(l.size.open), staleConsumers),
				measured: fmt.Sprintf("%d of %d", counted/staleConsumers, j.count()), goal: "all", reached: counted == staleConsumers*j.count(), counted: counted,
			},
			{part: "the 11 behind it waited", measured: story.behind.String(), goal: thresholdGoal(l, "max"), reached: story.behind.max() <= most},
			{part: "the 5 after these", measured: story.after.String()},
			{part: "itself, late", measured: story.late.String()},
			{
				part: "audit rows", measured: story.doubts + ", then " + afterwards,
				goal: want[0] + ", then " + want[1], reached: want == [2]string{story.doubts, afterwards},
			},
		}
		return err
	})
	return rows, err
}

// staleStory is how long events waited around a transaction that stays open,
// and what the audit said when they had gone past it.
type staleStory struct {
	behind, after, late durations
	doubts              string
}

func (t *staleStory) tell(ctx context.Context, j *journal, all []*recorder) (err error) {
	if err := warmUp(ctx, j, all...); err != nil {
		return err
	}
	began := time.Now()
	open, err := j.begin(ctx)
	if err != nil {
		return err
	}
	if err := appendAll(ctx, j, staleBehind, all); err != nil {
		return err
	}
	passed := time.Now()
	if err := appendAll(ctx, j, staleAfter, all); err != nil {
		return err
	}
	if t.doubts, err = j.site.doubts(ctx); err != nil {
		return err
	}
	if err := pause(ctx, time.Until(began.Add(j.site.lab.size.open))); err != nil {
		return err
	}
	ended := time.Now()
	if err := errors.Join(open.commit(), j.settle(ctx, all...)); err != nil {
		return err
	}
	for _, r := range all {
		t.behind = append(t.behind, j.lags(r, began, passed)...)
		t.after = append(t.after, j.lags(r, passed, ended)...)
		t.late = append(t.late, j.lags(r, ended, time.Now())...)
	}
	return nil
}

// thresholdGoal says how long events may wait for a transaction that stays
// open.
func thresholdGoal(l *lab, of string) string {
	return strings.TrimSpace(of + " <= StaleGapThreshold (" + short(l.size.threshold) + ") + 1 s")
}

func appendAll(ctx context.Context, j *journal, n int, recorders []*recorder) error {
	for range n {
		if err := j.append(ctx, true); err != nil {
			return err
		}
	}
	return j.settle(ctx, recorders...)
}

// doubts says how many rows of the audit are about positions that were in
// doubt when they were passed.
func (s *site) doubts(ctx context.Context) (text string, err error) {
	err = s.db.QueryRowContext(ctx, `
SELECT coalesce(string_agg(n || ' ' || state, ' and ' ORDER BY state), 'none')
FROM (SELECT state, count(*) AS n FROM consumer_gap_skips WHERE state <> 'void' GROUP BY state) AS s`).Scan(&text)
	return text, err
}

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

// paced runs n steps spread evenly over d, and several at a time where they
// are late.
func paced(ctx context.Context, n int, d time.Duration, step func(ctx context.Context, i int) error) error {
	began := time.Now()
	var next atomic.Int64
	return crowd(ctx, 8, func(ctx context.Context) (more bool, err error) {
		i := int(next.Add(1)) - 1
		if i >= n {
			return false, nil
		}
		if err := pause(ctx, time.Until(began.Add(d*time.Duration(i)/time.Duration(n)))); err != nil {
			return false, err
		}
		return true, step(ctx, i)
	})
}

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
