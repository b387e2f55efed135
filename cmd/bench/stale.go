package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
		var waits staleWaits
		err := s.work(ctx, 2, asConsumers(all), opts, func(ctx context.Context) error { return waits.measure(ctx, j, all) })
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
			{part: "the 11 behind it waited", measured: waits.behind.String(), goal: thresholdGoal(l, "max"), reached: waits.behind.max() <= most},
			{part: "the 5 after these", measured: waits.after.String()},
			{part: "itself, late", measured: waits.late.String()},
			{
				part: "audit rows", measured: waits.doubts + ", then " + afterwards,
				goal: want[0] + ", then " + want[1], reached: want == [2]string{waits.doubts, afterwards},
			},
		}
		return err
	})
	return rows, err
}

// staleWaits are how long events waited around a transaction that stays open,
// and what the audit said when they had gone past it.
type staleWaits struct {
	behind, after, late durations
	doubts              string
}

func (t *staleWaits) measure(ctx context.Context, j *journal, all []*recorder) (err error) {
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

// doubts says how many rows of the audit are about positions that were in
// doubt when they were passed.
func (s *site) doubts(ctx context.Context) (text string, err error) {
	err = s.db.QueryRowContext(ctx, `
SELECT coalesce(string_agg(n || ' ' || state, ' and ' ORDER BY state), 'none')
FROM (SELECT state, count(*) AS n FROM consumer_gap_skips WHERE state <> 'void' GROUP BY state) AS s`).Scan(&text)
	return text, err
}
