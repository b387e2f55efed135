package main

import (
	"context"
	"time"

	"github.com/pgfrontier/worker"
)

// dispatcher is a strategy with what it needs and what it costs.
type dispatcher struct {
	name    string
	channel string                      // that the writers notify
	options func(*site) []worker.Option // of the workers
	latency time.Duration               // at most, until the frontier polls
}

var (
	notify = dispatcher{"notify", channel, (*site).notify, 0}
	poll   = dispatcher{"poll", "", (*site).poll, worker.DefaultConfig().DispatcherInterval}
)

// warmUp lets everything that happens only once happen: connections, prepared
// statements, LISTEN.
func warmUp(ctx context.Context, j *journal, recorders ...*recorder) error {
	for range 5 {
		if err := j.append(ctx, true); err != nil {
			return err
		}
		if err := j.settle(ctx, recorders...); err != nil {
			return err
		}
	}
	return nil
}
