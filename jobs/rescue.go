package jobs

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// rescueTick is how often the leader checks for dead workers whose jobs are due for a reset.
const rescueTick = 250 * time.Millisecond

// rescuer resets the jobs of dead workers while this worker leads. Correctness does not depend on
// there being one leader only. It runs nothing else: a less urgent task could wait for a connection
// and delay the reset.
type rescuer struct {
	*env
	coord    *coord.Coordinator
	delay    time.Duration // WithRescueDelay
	interval time.Duration // of maintenance
	back     func()        // called when jobs were released

	turn   watchdog.Iteration
	chunks chunks[int64]

	cleared atomic.Bool // dead was cleared: maintenance must read again which workers have no row

	mu    sync.Mutex
	dead  map[uuid.UUID]time.Time // since when each worker seems dead
	clean map[uuid.UUID]time.Time // when its jobs were last reset
}

// see records which workers seem dead. rows are the workers with a row, alive those that show that
// they live.
func (r *rescuer) see(rows, alive []uuid.UUID) {
	living := make(map[uuid.UUID]bool, len(alive))
	for _, id := range alive {
		living[id] = true
	}
	known := make(map[uuid.UUID]bool, len(rows))
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range rows {
		known[id] = true
		if _, was := r.dead[id]; !was && !living[id] {
			r.dead[id] = now
		}
	}
	for id := range r.dead {
		if living[id] {
			delete(r.dead, id)
			delete(r.clean, id)
		}
	}
}

// suspect records workers that have running jobs and no row.
func (r *rescuer) suspect(ids []uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, id := range ids {
		if _, was := r.dead[id]; !was {
			r.dead[id] = now
		}
	}
}

// due returns the workers that have seemed dead for the rescue delay. A worker whose jobs were
// reset is due again after a pause that doubles. A claim of the dead worker may commit late. And
// the reset passes over rows that a connection of the dead worker holds locked.
func (r *rescuer) due(now time.Time) (ids []uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, since := range r.dead {
		if now.Sub(since) >= r.delay && now.Sub(r.clean[id]) >= min(r.interval, r.clean[id].Sub(since)) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (r *rescuer) took(ids []uuid.UUID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.clean[id] = now
	}
	for id, at := range r.clean {
		if now.Sub(at) > 10*r.interval { // the row of the worker was removed long ago
			delete(r.dead, id)
			delete(r.clean, id)
		}
	}
}

func (r *rescuer) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.dead)
	clear(r.clean)
	r.cleared.Store(true)
}

// run resets jobs until ctx ends.
func (r *rescuer) run(ctx context.Context) {
	for backoff.Sleep(ctx, rescueTick) {
		if !r.coord.Status().Leader {
			r.forget() // another worker may have led meanwhile
			continue
		}
		if ids := r.due(time.Now()); len(ids) > 0 {
			r.task(ctx, &r.turn, resetTask, func(ctx context.Context, conn *sql.Conn) error { return r.reset(ctx, conn, ids) })
		}
	}
}

// reset resets the jobs of dead workers. The statement checks again that the workers are dead. A
// job that the database refuses to reset is set aside.
func (r *rescuer) reset(ctx context.Context, conn *sql.Conn, ids []uuid.UUID) error {
	total := observe.JobsReset{Workers: ids}
	defer func() {
		if total.Back+total.Ended > 0 {
			r.back()
			r.observers.Notify(total)
		}
	}()
	for {
		with, args, err := r.coord.DeadSQL(ids, r.delay)
		if err != nil {
			return err
		}
		n, err := r.chunks.take(ctx, r.env, resetTask, func(out []int64, most int) ([]int64, error) {
			return r.queue.Lost(ctx, r.planned(conn, conn), out, most, with, args...)
		}, func(jobs []int64) (int, error) {
			back, ended, err := r.queue.Reset(ctx, r.planned(conn, conn), jobs, with, args...)
			total.Back, total.Ended = total.Back+back, total.Ended+ended
			return back + ended, err
		})
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	r.took(ids, time.Now())
	return nil
}

const resetTask = "reset the jobs of dead workers"

// mostTaken bounds how many jobs without a worker a statement ends or resets.
const mostTaken = 1000

// chunks are the rows that a task of the leader processes in chunks.
type chunks[K cmp.Ordered] struct {
	what    func(e *env, id K, err error) error // names a refused row and the remedy
	pace    batch.Pace
	refused batch.Refused[K]
}

// take finds a chunk of rows and processes it. It returns how many rows were processed. Rows that
// the database refuses are reported, and left out of the next calls for a while.
func (s *chunks[K]) take(ctx context.Context, e *env, task string, find func(out []K, most int) ([]K, error), take func(ids []K) (int, error)) (taken int, err error) {
	begin, most := time.Now(), s.pace.Most(mostTaken)
	out := s.refused.Begin(begin)
	s.refused.Partly(nil)
	ids, err := find(out, most)
	if len(ids) == 0 || err != nil {
		if err == nil {
			s.refused.End()
		}
		return 0, err
	}
	var refused []error
	err = batch.Each(ids, func(ids []K) error {
		n, err := take(ids)
		taken += n
		return err
	}, func(id K, err error) error {
		err = s.what(e, id, err)
		if _, ok := s.refused.Add(id, err, time.Now()); !ok {
			return fmt.Errorf("more than %d rows are refused, the last one: %w", batch.MostRefused, err)
		}
		refused = append(refused, err)
		return nil
	})
	s.pace.Took(len(ids), time.Since(begin), e.limit, err)
	switch len(refused) {
	case 0:
	case 1:
		e.taskFailed(task, refused[0])
	default:
		e.taskFailed(task, fmt.Errorf("%w (and %d more rows)", refused[0], len(refused)-1))
	}
	if err == nil && taken == 0 && len(refused) > 0 {
		return len(refused), nil // there may be more rows behind the refused ones
	}
	return taken, err
}

// refusedJob describes a job that the database refuses to change.
func refusedJob(e *env, id int64, err error) error {
	return fmt.Errorf("job %d: %w", id, e.refusal(id, err))
}
