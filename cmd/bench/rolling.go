package main

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// rolling measures how soon a new process takes part, and how soon a leader that
// is asked to end is replaced, as in a deployment.
func rolling(ctx context.Context, l *lab) (rows []row, err error) {
	for _, x := range []struct {
		dispatcher
		joined time.Duration
	}{{notify, 500 * time.Millisecond}, {poll, time.Second}} {
		r, counted, err := l.handOver(ctx, x.dispatcher, syscall.SIGTERM)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", x.name, err)
		}
		rows = append(rows,
			limited(x.name+", one joins: from its call of Start", r.joined, x.joined, counted),
			row{part: "control: from the start of the process to that call", measured: r.loaded.few()},
			limited(x.name+", the leader ends: from its SIGTERM", r.taken, 500*time.Millisecond, 0))
	}
	return rows, nil
}
