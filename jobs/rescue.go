package jobs

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/turn"
)

// rescueTick is how often the leader looks whose jobs to give to others.
const rescueTick = 250 * time.Millisecond

// rescuer gives the jobs of the dead to others, while this worker leads. Nothing depends
// on that it is one only. It does nothing else: what is less urgent could wait for a
// connection, and these jobs with it.
type rescuer struct {
	w    *Worker
	turn turn.Turn

	mu    sync.Mutex
	dead  map[uuid.UUID]time.Time // since when they seem dead
	clean map[uuid.UUID]time.Time // when their jobs were last looked for
}

func newRescuer(w *Worker) *rescuer {
	return &rescuer{w: w, dead: map[uuid.UUID]time.Time{}, clean: map[uuid.UUID]time.Time{}}
}

// see takes note of who seems dead at a look of the leader.
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

// suspect takes note of workers that jobs run for and that have no row.
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

// due are the workers that have seemed dead for long enough. Those whose jobs were
// taken are looked at again, after a pause that doubles: a claim may have been
// committed late, and rows that a connection of theirs holds are passed over.
func (r *rescuer) due(now time.Time) (ids []uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, since := range r.dead {
		if now.Sub(since) >= r.w.cfg.rescueDelay && now.Sub(r.clean[id]) >= min(r.w.choreInterval, r.clean[id].Sub(since)) {
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
		if now.Sub(at) > 10*r.w.choreInterval { // its row is long gone
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
}

// run does that until ctx ends.
func (r *rescuer) run(ctx context.Context) {
	for backoff.Sleep(ctx, rescueTick) {
		if !r.w.coord.Status().Leader {
			r.forget()
			continue
		}
		if ids := r.due(time.Now()); len(ids) > 0 {
			r.w.task(ctx, &r.turn, "reset the jobs of dead workers", func(ctx context.Context, conn *sql.Conn) error { return r.reset(ctx, conn, ids) })
		}
	}
}

// task runs statements of one of the loops that a leader has, and notes whether they
// fail.
func (w *Worker) task(ctx context.Context, t *turn.Turn, name string, f func(ctx context.Context, conn *sql.Conn) error) {
	t.Begin()
	defer t.End()
	bounded, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	err := w.on(bounded, func(conn *sql.Conn) error { return f(bounded, conn) })
	if ctx.Err() == nil {
		w.taskFailed(name, err)
	}
}

// reset gives the jobs of the dead to others. That they are dead is judged again, in
// the statement that does it.
func (r *rescuer) reset(ctx context.Context, conn *sql.Conn, ids []uuid.UUID) error {
	total := Reset{Workers: ids}
	for {
		with, args, err := r.w.coord.DeadSQL(ids, r.w.cfg.rescueDelay)
		if err != nil {
			return err
		}
		back, ended, err := r.w.queue.Reset(ctx, conn, with, args...)
		if err != nil {
			return err
		}
		total.Back, total.Ended = total.Back+back, total.Ended+ended
		if back+ended == 0 {
			break
		}
	}
	r.took(ids, time.Now())
	if total.Back+total.Ended > 0 {
		tell(r.w.voice, "JobsReset", func(o *Observer) func(Reset) { return o.JobsReset }, total)
	}
	return nil
}
