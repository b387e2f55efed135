package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
)

const (
	depthEvery = 10 * time.Second
	depthLimit = 5 * time.Second
)

// depth has the waiting jobs of the queues, the schedules and the flows. While the tables cannot be
// read, it keeps what the last successful read has found.
type depth struct {
	mu    sync.Mutex
	jobs  *ops.Jobs
	found depthFound
	blind bool // the role may not read the schedules
	err   error
	read  time.Time // the latest read
}

// depthFound is the result of one read.
type depthFound struct {
	at         time.Time // zero: none has succeeded
	queues     []ops.Queue
	schedules  []ops.ScheduleInfo
	unadvanced bool
}

func (d *depth) of(o *ops.Jobs) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jobs, d.read, d.blind, d.found, d.err = o, time.Time{}, false, depthFound{}, nil
}

// sample emits the depth. It first reads the tables if the latest read is old enough.
func (d *depth) sample(ctx context.Context, sample Sample) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jobs == nil {
		return
	}
	if d.read.IsZero() || time.Since(d.read) >= depthEvery {
		d.poll(ctx)
	}
	if sample(jobsReadUp, truth(d.err == nil)); d.found.at.IsZero() {
		return
	}
	sample(jobsReadAge, time.Since(d.found.at).Seconds())
	for _, q := range d.found.queues {
		if q.Name == ops.AllQueues {
			continue
		}
		sample(jobsDue, float64(q.Due), q.Name)
		sample(jobsScheduled, float64(q.Scheduled), q.Name)
		sample(jobsOldest, q.OldestDue.Seconds(), q.Name)
	}
	for _, s := range d.found.schedules {
		sample(jobsOverdue, s.Overdue.Seconds(), s.Name)
		sample(jobsStopped, truth(s.Paused != nil), s.Name)
	}
	sample(jobsUnadvanced, truth(d.found.unadvanced))
}

// poll reads the tables. The first error of several is logged, since an observer has no way to
// return it.
func (d *depth) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, depthLimit)
	defer cancel()
	found, err := d.ask(ctx)
	if err == nil {
		d.found = found
	} else if d.err == nil {
		slog.Warn("cannot read queues and schedules, their metrics keep the last values", "error", errtext.Of(err))
	}
	d.err, d.read = err, time.Now()
}

// ask reads the tables. The role of a worker may lack the right to read the schedules: then there
// are none, and ask does not read them again.
func (d *depth) ask(ctx context.Context) (found depthFound, err error) {
	found.at = time.Now()
	if found.queues, err = d.jobs.Queues(ctx); err != nil {
		return found, err
	}
	if found.unadvanced, err = d.jobs.Unadvanced(ctx); err != nil || d.blind {
		return found, err
	}
	found.schedules, err = d.jobs.Schedules(ctx)
	if d.blind = pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege; d.blind {
		return found, nil
	}
	return found, err
}
