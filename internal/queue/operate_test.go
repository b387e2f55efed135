package queue

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/ident"
)

// Operators tell of what they do as workers and clients would: of an end to those
// who await it, of a job that is due now to those who want to be told.
func TestOperatorsTell(t *testing.T) {
	s := newStage(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	news, ends, err := s.Channels(ctx, s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := pgx.Connect(ctx, s.d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close(context.Background()) }()
	for _, channel := range []string{news, ends} {
		if _, err := listener.Exec(ctx, "LISTEN "+ident.Quote(channel)); err != nil {
			t.Fatal(err)
		}
	}
	told := func(channel, payload string) {
		t.Helper()
		if n, err := listener.WaitForNotification(ctx); err != nil || n.Channel != channel || n.Payload != payload {
			t.Errorf("told %+v, %v; want %s on %s", n, err, payload, channel)
		}
	}
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "a", Delay: time.Hour.Microseconds()})
	s.d.Exec(t, `UPDATE jobs SET awaited = true WHERE id = $1`, ids[1])
	if err := s.CancelAll(ctx, s.d.DB, ids[:2]); err != nil {
		t.Fatal(err)
	}
	told(ends, "2")
	if err := s.Want(ctx, s.d.DB, "default"); err != nil {
		t.Fatal(err)
	}
	if err := s.Hasten(ctx, s.d.DB, ids[2]); err != nil {
		t.Fatal(err)
	}
	told(news, "default")
	if as, err := s.Again(ctx, s.d.DB, ids[0]); err != nil || as != 4 {
		t.Errorf("again as %d, %v", as, err)
	}
	told(news, "default")
	if err := s.Hasten(ctx, s.d.DB, ids[0]); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("a job that has finished: %v", err)
	}
	if _, err := s.Again(ctx, s.d.DB, ids[2]); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("a job that has not finished: %v", err)
	}
}

// The retention of a queue goes before that of all queues, and that before the
// worker's.
func TestWhoseRetention(t *testing.T) {
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a", Queue: "own"})
	if err := s.CancelAll(t.Context(), s.d.DB, ids); err != nil {
		t.Fatal(err)
	}
	s.d.Exec(t, `UPDATE jobs_history SET finished_at = clock_timestamp() - interval '1 hour'`)
	retain := func(what string, keep time.Duration, want int) {
		t.Helper()
		if n, err := s.Retain(t.Context(), s.d.DB, keep); err != nil || n != want {
			t.Errorf("%s: %d are removed, %v; want %d", what, n, err, want)
		}
	}
	s.d.Exec(t, `INSERT INTO jobs_queues (name, retention) VALUES ('*', interval '1 day')`)
	retain("a day for all queues", time.Minute, 0)
	s.d.Exec(t, `INSERT INTO jobs_queues (name, retention) VALUES ('own', interval '1 minute')`)
	retain("a minute for one", 0, 1)
	s.d.Exec(t, `DELETE FROM jobs_queues`)
	retain("as the worker has it", time.Minute, 1)
}
