package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/pgfrontier/worker/ops"
)

const (
	depthEvery = 10 * time.Second
	depthLimit = 5 * time.Second
)

// depth is how many jobs wait in the queues, as the tables had it not long ago.
type depth struct {
	mu     sync.Mutex
	jobs   *ops.Jobs
	queues []ops.Queue
	err    error
	read   time.Time
}

func (d *depth) of(o *ops.Jobs) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jobs, d.read = o, time.Time{}
}

// sample tells it, and first looks at the tables if it is time.
func (d *depth) sample(ctx context.Context, sample Sample) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jobs == nil {
		return
	}
	if d.read.IsZero() || time.Since(d.read) >= depthEvery {
		d.look(ctx)
	}
	if sample(jobsReadUp, truth(d.err == nil)); d.err != nil {
		return
	}
	for _, q := range d.queues {
		if q.Name == ops.AllQueues {
			continue
		}
		sample(jobsDue, float64(q.Due), q.Name)
		sample(jobsScheduled, float64(q.Scheduled), q.Name)
		sample(jobsOldest, q.OldestDue.Seconds(), q.Name)
	}
}

func (d *depth) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, depthLimit)
	defer cancel()
	d.queues, d.err = d.jobs.Queues(ctx)
	d.read = time.Now()
}
