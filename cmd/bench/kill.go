package main

import (
	"context"
	"os"
	"time"
)

// kill measures how soon a killed leader is replaced, with default options.
func kill(ctx context.Context, l *lab) ([]row, error) {
	r, counted, err := l.handOver(ctx, poll, os.Kill)
	if err != nil {
		return nil, err
	}
	return []row{limited(poll.name, r.taken, 1500*time.Millisecond, counted)}, nil
}
