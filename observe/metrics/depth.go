package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
)

const (
	depthEvery = 10 * time.Second
	depthLimit = 5 * time.Second
)

// depth has the waiting jobs of the queues, the schedules and the flows, as the latest read of the
// tables has found them.
type depth struct {
	mu         sync.Mutex
	jobs       *ops.Jobs
	queues     []ops.Queue
	schedules  []ops.ScheduleInfo
	unadvanced bool
	blind      bool // the role may not read the schedules
	err        error
	read       time.Time
}

func (d *depth) of(o *ops.Jobs) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jobs, d.read, d.blind = o, time.Time{}, false
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
	for _, s := range d.schedules {
		sample(jobsOverdue, s.Overdue.Seconds(), s.Name)
		sample(jobsStopped, truth(s.Paused != nil), s.Name)
	}
	sample(jobsUnadvanced, truth(d.unadvanced))
}

func (d *depth) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, depthLimit)
	defer cancel()
	d.err = d.ask(ctx)
	d.read = time.Now()
}

// ask reads the tables. The role of a worker may lack the right to read the schedules: then there
// are none, and ask does not read them again.
func (d *depth) ask(ctx context.Context) (err error) {
	if d.queues, err = d.jobs.Queues(ctx); err != nil {
		return err
	}
	if d.unadvanced, err = d.jobs.Unadvanced(ctx); err != nil || d.blind {
		return err
	}
	d.schedules, err = d.jobs.Schedules(ctx)
	if d.blind = pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege; d.blind {
		return nil
	}
	return err
}
