package main

import (
	"context"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
)

// upsert measures a projection that writes for each event.
func upsert(ctx context.Context, l *lab) (rows []row, err error) {
	return l.compare(ctx, l.size.upserts, worker.DefaultConfig().BatchSize, 0.85, func(name string) (consumer.Consumer, *walker) {
		p := &projecting{walker{name: name}}
		return p, &p.walker
	})
}
