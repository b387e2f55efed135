package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/ident"
)

// A control is what the machine allows at that moment, measured meanwhile and
// without any code of the library.

// beside runs a control on a connection of its own while during runs.
func (s *site) beside(ctx context.Context, control func(context.Context, *pgx.Conn) error, during func() error) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error)
	go func() {
		err := control(running, conn)
		if running.Err() != nil {
			err = nil // it was stopped
		}
		ended <- err
	}()
	err = during()
	stop()
	return errors.Join(err, <-ended, conn.Close(ctx))
}

// heard are the times at which a bare LISTEN was told of something.
type heard []time.Time

func (h *heard) listen(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "LISTEN "+ident.Quote(channel)); err != nil {
		return err
	}
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
		*h = append(*h, time.Now())
	}
}

// lags returns how long after its COMMIT had returned each append was heard,
// which were the only ones, one after the other: the last of either belong
// together.
func (h heard) lags(j *journal, n int) (all durations) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var commits []time.Time
	for _, at := range j.committed {
		commits = append(commits, at)
	}
	slices.SortFunc(commits, time.Time.Compare)
	for i := 1; i <= min(n, len(h), len(commits)); i++ {
		all = append(all, max(h[len(h)-i].Sub(commits[len(commits)-i]), 0))
	}
	return all
}

// roundTrips are the times of statements that do nothing.
type roundTrips durations

func (r *roundTrips) measure(ctx context.Context, conn *pgx.Conn) error {
	for {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
		began := time.Now()
		if _, err := conn.Exec(ctx, "SELECT 1"); err != nil {
			return err
		}
		*r = append(*r, time.Since(began))
	}
}
