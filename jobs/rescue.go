package jobs

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/incarnation"
)

const (
	// rescueTick is how often the leader looks whose jobs to give to others.
	rescueTick = 250 * time.Millisecond
	// choresEvery is how often it does what is not urgent.
	choresEvery = 10 * time.Second
	// choreSlice bounds for how long it removes what is old before it looks again for the
	// dead: their jobs wait, and what is old does not.
	choreSlice = 500 * time.Millisecond
)

// rescuer does what one of all workers must do, while this one leads: it gives the
// jobs of the dead to others, and removes what is old. Nothing depends on that it is
// one only.
type rescuer struct {
	w    *Worker
	turn turn

	mu    sync.Mutex
	dead  map[uuid.UUID]time.Time // since when they seem dead
	clean map[uuid.UUID]time.Time // when their jobs were last looked for

	choresAt time.Time
	cleanup  cleanup
	token    atomic.Bool // look for it now: the server may have crashed
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
		if now.Sub(since) >= r.w.cfg.rescueDelay && now.Sub(r.clean[id]) >= min(r.w.chores, r.clean[id].Sub(since)) {
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
		if now.Sub(at) > 10*r.w.chores { // its row is long gone
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
	r.cleanup = cleanup{}
}

// run does all that until ctx ends.
func (r *rescuer) run(ctx context.Context) {
	for backoff.Sleep(ctx, rescueTick) {
		now := time.Now()
		if r.token.Swap(false) {
			r.task(ctx, "keep the token", r.w.plantToken)
		}
		if !r.w.coord.Status().Leader {
			r.forget()
			r.choresAt = time.Time{} // a worker that leads again does them at once, and finds those forgotten
			continue
		}
		if ids := r.due(now); len(ids) > 0 {
			r.task(ctx, "reset the jobs of dead workers", func(ctx context.Context, conn *sql.Conn) error { return r.reset(ctx, conn, ids) })
		}
		if now.After(r.choresAt) {
			r.choresAt = now.Add(r.w.chores)
			r.chores(ctx)
		}
		r.cleanUp(ctx)
	}
}

func (r *rescuer) task(ctx context.Context, name string, f func(ctx context.Context, conn *sql.Conn) error) {
	r.turn.begin()
	defer r.turn.end()
	bounded, cancel := context.WithTimeout(ctx, r.w.limit)
	defer cancel()
	err := r.w.on(bounded, func(conn *sql.Conn) error { return f(bounded, conn) })
	if ctx.Err() == nil {
		r.w.taskFailed(name, err)
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

// chores does what is not urgent.
func (r *rescuer) chores(ctx context.Context) {
	r.task(ctx, "keep the token", r.w.plantToken)
	r.task(ctx, "look for jobs of workers that are gone", func(ctx context.Context, conn *sql.Conn) error {
		ids, err := r.w.queue.Claimers(ctx, conn)
		r.suspect(ids)
		return err
	})
	if !r.cleanup.underWay() {
		r.task(ctx, "look for finished jobs", func(ctx context.Context, conn *sql.Conn) (err error) {
			r.cleanup.queues, err = r.w.queue.Retained(ctx, conn)
			return err
		})
		r.cleanup.expire, r.cleanup.forget = true, true
	}
	r.task(ctx, "remove notes of events", func(ctx context.Context, conn *sql.Conn) error {
		there, err := r.w.queue.HasEvents(ctx, conn, r.w.events)
		if !there || err != nil {
			return err
		}
		return r.w.queue.Raise(ctx, conn, r.w.events)
	})
}

// plantToken puts a token into its table after the server has emptied it: only with
// one is a free lock a sign of death.
func (w *Worker) plantToken(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, incarnation.PlantOnce(w.tables.Token), uuid.NewString())
	return err
}
