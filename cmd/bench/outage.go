package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// ledger is a consumer that writes down, in bulk, what it was given and when,
// by the clock of the database.
type ledger struct{ name string }

func (l *ledger) Name() string { return l.name }

func (l *ledger) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	return l.HandleBatch(ctx, tx, []store.PersistedEvent{e})
}

func (l *ledger) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	positions := make([]int64, len(events))
	for i, e := range events {
		positions[i] = e.GlobalPosition
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position) SELECT $1, unnest($2::bigint[])`, l.name, positions)
	return err
}

const (
	outageConsumers = 4
	createLedger    = `CREATE TABLE ledger (consumer TEXT, position BIGINT, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp())`
)

// outage takes the server away under full load, twice.
func outage(ctx context.Context, l *lab) (rows []row, err error) {
	err = l.onOwnServer(ctx, nil, func(l *lab) error {
		return l.onSite(ctx, func(s *site) error {
			if _, err := s.db.ExecContext(ctx, createLedger); err != nil {
				return err
			}
			var all []consumer.Consumer
			for _, c := range newRecorders(outageConsumers) {
				all = append(all, &ledger{c.name})
			}
			j := newJournal(s, notify.channel)
			err := s.work(ctx, 2, all, s.notify(), func(ctx context.Context) (err error) {
				rows, err = l.outages(ctx, s, j)
				return errors.Join(err, s.caughtUp(ctx))
			})
			if err != nil {
				return err
			}
			counted, err := j.auditLedger(ctx)
			rows[len(rows)-1].counted = counted
			return err
		})
	})
	return rows, err
}

// outages has writers write all the time.
func (l *lab) outages(ctx context.Context, s *site, j *journal) (rows []row, err error) {
	writing, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error)
	var refused atomic.Int64
	go func() {
		ended <- crowd(writing, writers, func(context.Context) (bool, error) {
			// What failed may have happened: the log knows.
			if j.append(context.WithoutCancel(ctx), true) != nil {
				refused.Add(1)
				_ = pause(writing, 10*time.Millisecond)
			}
			return true, nil
		})
	}()
	for _, x := range []struct {
		part string
		time time.Duration
		down func() error
	}{
		{"shut down", l.size.outage, func() error { return interrupt(l.server.PID()) }},
		{"killed", min(l.size.outage, 5*time.Second), l.server.Kill},
	} {
		var took time.Duration
		if err == nil {
			took, err = s.outlast(ctx, j, x.time, x.down)
		}
		rows = append(rows, row{
			part:     fmt.Sprintf("%s for %s under full load: all handle new events", x.part, short(x.time)),
			measured: "after " + short(took),
		})
	}
	stop()
	<-ended // that it was stopped
	rows = append(rows, row{
		part:     "lost, handled again, workers that ended",
		measured: fmt.Sprintf("0 (and %s appends failed)", grouped(refused.Load())), goal: "0", reached: err == nil,
	})
	return rows, err
}

// interrupt asks the server to end all sessions and itself.
func interrupt(postmaster int) error {
	p, err := os.FindProcess(postmaster)
	if err != nil {
		return err
	}
	return p.Signal(os.Interrupt)
}

// outlast takes the server away for some time, and returns how long after its
// return every consumer had handled an event that was appended since.
func (s *site) outlast(ctx context.Context, j *journal, away time.Duration, down func() error) (took time.Duration, err error) {
	load := s.lab.size.load / 4
	if err := pause(ctx, load); err != nil {
		return 0, err
	}
	if err := down(); err != nil {
		return 0, err
	}
	if err := pause(ctx, away); err != nil {
		return 0, err
	}
	if err := s.lab.server.Restart(ctx); err != nil {
		return 0, err
	}
	back := time.Now()
	var fresh int64
	if err := until(ctx, "an append after the server's return", func() bool { fresh = j.firstAfter(back); return fresh > 0 }); err != nil {
		return 0, err
	}
	err = eventually(ctx, "every consumer to handle it", func() (bool, error) {
		var n int
		var at sql.NullTime
		// On the server's machine, which is this one.
		err := s.db.QueryRowContext(ctx, `SELECT count(*), max(at) FROM ledger WHERE position = $1`, fresh).Scan(&n, &at)
		took = at.Time.Sub(back)
		return n == outageConsumers, err
	})
	if err == nil {
		err = pause(ctx, load)
	}
	return took, err
}

// firstAfter returns the first position that was committed after a time, 0 if
// there is none yet.
func (j *journal) firstAfter(from time.Time) (position int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for p, at := range j.committed {
		if at.After(from) && (position == 0 || p < position) {
			position = p
		}
	}
	return position
}

// caughtUp waits until every consumer is at the head of the log.
func (s *site) caughtUp(ctx context.Context) error {
	return eventually(ctx, "every consumer to reach the head", func() (done bool, err error) {
		err = s.db.QueryRowContext(ctx, `
SELECT count(*) = $1 FROM consumer_checkpoints WHERE last_position >= (SELECT max(global_position) FROM events)`, outageConsumers).Scan(&done)
		return done, err
	})
}

// auditLedger compares the three ledgers: what the writers were told, what
// is in the log, and what every consumer wrote down. It returns how many
// deliveries were right.
func (j *journal) auditLedger(ctx context.Context) (deliveries int, err error) {
	positions := make([]int64, 0, len(j.committed))
	for p := range j.committed {
		positions = append(positions, p)
	}
	var lost, wrong int
	err = j.site.db.QueryRowContext(ctx, `
SELECT (SELECT count(*) FROM unnest($1::bigint[]) AS p WHERE NOT EXISTS (SELECT FROM events WHERE global_position = p)),
	(SELECT count(*) FROM (SELECT position, count(*) AS n, count(DISTINCT consumer) AS distinct_n FROM ledger GROUP BY position) AS l
		FULL JOIN events ON position = global_position
		WHERE n IS DISTINCT FROM $2 OR distinct_n IS DISTINCT FROM $2 OR global_position IS NULL),
	(SELECT count(*) FROM ledger)`, positions, outageConsumers).Scan(&lost, &wrong, &deliveries)
	switch {
	case err != nil:
		return 0, err
	case lost > 0:
		return 0, fmt.Errorf("%d committed events are not in the log", lost)
	case wrong > 0:
		return 0, fmt.Errorf("%d events were not handled exactly once by each of %d consumers", wrong, outageConsumers)
	case deliveries == 0:
		return 0, errors.New("nothing was handled, so nothing was checked")
	}
	return deliveries, nil
}
