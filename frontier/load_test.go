package frontier

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
)

// TestNothingIsLostUnderLoad follows the log while transactions commit, roll back, idle, roll
// back to savepoints and are prepared. It tests the real statements, as TestProtocol tests the
// real decisions.
func TestNothingIsLostUnderLoad(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		log    store.Log
		strict bool
	}{
		{"named", events(), false},
		{"named, waiting", events(), true},
		{"unnamed", eventLog{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := pgtest.New(t)
			cfg := testConfig(t, d.DB)
			cfg.Log, cfg.Strict = c.log, c.strict
			cfg.Interval, cfg.StaleAfter = time.Millisecond, 5*time.Millisecond
			cfg.OnFailure, cfg.OnStale = nil, nil
			f, _ := run(t, cfg)

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var writers sync.WaitGroup
			for seed := range uint64(12) {
				writers.Go(func() {
					w := writer{db: d.DB, r: rand.New(rand.NewPCG(seed, 1)), name: fmt.Sprint("w", seed)}
					if err := w.run(ctx, 40); err != nil {
						t.Error(err)
					}
				})
			}
			done := make(chan struct{})
			go func() { writers.Wait(); close(done) }()
			follow(t, d.DB, f, done)
		})
	}
}

// writer appends in transactions of every kind.
type writer struct {
	db   *sql.DB
	r    *rand.Rand
	name string
}

func (w writer) run(ctx context.Context, transactions int) error {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for i := range transactions {
		if err := w.transaction(ctx, conn, fmt.Sprint(w.name, "_", i)); err != nil {
			return err
		}
	}
	return nil
}

func (w writer) transaction(ctx context.Context, conn *sql.Conn, gid string) error {
	statements := []string{`BEGIN`}
	for range 1 + w.r.IntN(3) {
		switch w.r.IntN(6) {
		case 0:
			statements = append(statements, `SAVEPOINT s`, insertEvent, `ROLLBACK TO SAVEPOINT s`)
		case 1:
			statements = append(statements, insertEvent, ``)
		default:
			statements = append(statements, insertEvent)
		}
	}
	prepared := w.r.IntN(8) == 0
	if prepared {
		statements = append(statements, `PREPARE TRANSACTION '`+gid+`'`, ``)
	}
	switch commit := w.r.IntN(10) < 7; {
	case commit && prepared:
		statements = append(statements, `COMMIT PREPARED '`+gid+`'`)
	case prepared:
		statements = append(statements, `ROLLBACK PREPARED '`+gid+`'`)
	case commit:
		statements = append(statements, `COMMIT`)
	default:
		statements = append(statements, `ROLLBACK`)
	}
	for _, s := range statements {
		if s == `` { // the session idles, sometimes for longer than StaleAfter
			pause := time.NewTimer(time.Duration(w.r.IntN(15)) * time.Millisecond)
			<-pause.C
			continue
		}
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// follow is a consumer in memory. It returns when the writers are done and it has applied
// every event. It fails the test if an event is lost or applied twice.
func follow(t *testing.T, db *sql.DB, f *Frontier, writersDone <-chan struct{}) {
	t.Helper()
	var c follower
	deadline := time.After(2 * patience)
	for finished := false; ; {
		changed := f.Changed()
		if err := c.poll(t.Context(), db, f.Value()); err != nil {
			t.Fatal(err)
		}
		if finished && len(c.open) == 0 && c.complete(t, db) {
			break
		}
		select {
		case <-changed:
		case <-writersDone:
			finished, writersDone = true, nil
		case <-deadline:
			t.Fatalf("at %d with open %v, the value is %+v, blocked by %+v", c.checkpoint, c.open, *f.Value(), f.Blocked())
		}
	}
	t.Logf("%d events, %d late, %d void, %d ranges opened", len(c.applied), c.late, c.void, c.opened)
	if c.void == 0 || len(c.applied) == 0 {
		t.Fatal("the writers appended no event")
	}
}

type follower struct {
	checkpoint         int64
	open               []store.Range
	applied            map[int64]bool
	late, void, opened int64
}

// poll reads the rows up to the given Value.
func (c *follower) poll(ctx context.Context, db *sql.DB, v *Value) error {
	if c.applied == nil {
		c.applied = map[int64]bool{}
	}
	rows, err := c.read(ctx, db, v.Safe)
	if err != nil {
		return err
	}
	p := Page{Checkpoint: c.checkpoint, Through: max(c.checkpoint, v.Safe), Open: c.open}
	var seen []store.Range
	for _, position := range rows {
		if c.applied[position] {
			return fmt.Errorf("position %d was delivered twice", position)
		}
		c.applied[position] = true
		if position <= c.checkpoint {
			p.Found = append(p.Found, position)
			c.late++
		} else {
			seen = appendPosition(seen, position)
		}
	}
	p.Missing = subtract([]store.Range{{First: c.checkpoint + 1, Last: p.Through}}, seen)
	crossing := v.Cross(p)
	var open []store.Range
	at := 0
	for _, closed := range crossing.Closed {
		open = append(append(open, c.open[at:closed.Index]...), closed.Remains...)
		at = closed.Index + 1
	}
	c.open = append(append(open, c.open[at:]...), crossing.Opened...)
	c.checkpoint = crossing.To
	c.void += crossing.Void.Count
	c.opened += int64(len(crossing.Opened))
	return nil
}

// read returns the visible positions above the checkpoint and in the open ranges, in order,
// from one snapshot.
func (c *follower) read(ctx context.Context, db *sql.DB, safe int64) (positions []int64, err error) {
	var open strings.Builder
	for _, s := range c.open {
		fmt.Fprintf(&open, " OR global_position BETWEEN %d AND %d", s.First, s.Last)
	}
	rows, err := db.QueryContext(ctx, `SELECT global_position FROM events WHERE global_position > $1::bigint AND global_position <= $2::bigint`+open.String()+` ORDER BY 1`, c.checkpoint, safe)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var position int64
		if err := rows.Scan(&position); err != nil {
			return nil, err
		}
		positions = append(positions, position)
	}
	return positions, rows.Err()
}

// complete compares the applied positions with the events, once the checkpoint has passed all
// of them.
func (c *follower) complete(t *testing.T, db *sql.DB) bool {
	t.Helper()
	all := follower{}
	positions, err := all.read(t.Context(), db, 1<<62)
	if err != nil {
		t.Fatal(err)
	}
	if len(positions) > 0 && c.checkpoint < slices.Max(positions) {
		return false
	}
	for _, position := range positions {
		if !c.applied[position] {
			t.Errorf("position %d is lost", position)
		}
	}
	return true
}
