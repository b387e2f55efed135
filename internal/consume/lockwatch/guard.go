package lockwatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
)

// Row is what the statements that wait for the row of a unit need to be watched.
type Row struct {
	Sessions
	Unit        string
	Worker      uuid.UUID // this worker
	Checkpoints *progress.Checkpoints
	Patience    time.Duration // the time until the first poll
	Limit       time.Duration // of a wait for an unknown blocker; longer than another worker's batch
	// Dead reports whether a worker is dead. It is nil if several workers may share a
	// session, and then no batch is ended.
	Dead func(ctx context.Context, worker uuid.UUID) (bool, error)

	Waits func(err error, notify bool)    // reports whose lock the statement waits for; notify is true after growing pauses
	Over  func()                          // reports that no statement waits
	Ended func(zombie progress.OpenBatch) // reports a dead worker's batch that was ended
	Found func()                          // reports a dead connection: others may be dead, too
}

// Guards watches the guards of one unit. A suspicion outlives the guard: a
// statement_timeout may end each guard before the second poll.
type Guards struct {
	row    Row
	zombie suspicion // the dead batch that the polls suspect of holding the row
}

// New returns the watch of a unit's guards.
func New(r Row) Guards { return Guards{row: r} }

// Watch watches a guard in the session pid, or in an unknown session if pid is 0. The guard
// may wait long for another session's lock, and must not wait for an answer that never
// comes. In that case Watch calls giveUp.
//
// The caller calls end with the guard's error. If a time limit of the role ended the wait,
// end searches for a dead holder of the row once more. The limit may be shorter than the
// time to the first poll.
func (w *Guards) Watch(ctx context.Context, giveUp context.CancelCauseFunc, pid int64) (end func(err error)) {
	g := &guardWatch{Guards: w, session: pid, giveUp: giveUp, staleness: staleness{proof: time.Now()}}
	stop := PollAfter(ctx, w.row.Patience, g.poll)
	return func(err error) {
		stop()
		switch {
		case err == nil:
			w.zombie = suspicion{}
		case pgdriver.IsTimeLimit(err) && ctx.Err() == nil:
			limited, cancel := context.WithTimeout(ctx, PollLimit)
			defer cancel()
			w.row.Failed(ctx, endZombie, w.EndZombie(limited, pid))
		}
		w.row.Over()
	}
}

// Run runs statements that may wait for the row of the unit in the session pid, and watches
// them as Watch does. It ends the context of do if the connection is dead.
func (w *Guards) Run(ctx context.Context, pid int64, do func(ctx context.Context) error) error {
	inner, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	end := w.Watch(inner, giveUp, pid)
	err := do(inner)
	end(err)
	return WithCause(inner, ctx, err)
}

// guardWatch watches one guard.
type guardWatch struct {
	*Guards
	session int64 // pid of the guard's session; 0: unknown
	giveUp  context.CancelCauseFunc
	staleness
	waits int // polls in a row that found the guard waiting for a lock
}

func (g *guardWatch) poll(ctx context.Context) {
	s, known := g.pollBoth(ctx)
	if ctx.Err() != nil {
		return // the guard has returned
	}
	if g.dead(s, known, time.Now(), g.row.Limit) {
		if g.row.Found(); g.silent > 0 {
			g.giveUp(errSilent)
		} else {
			g.giveUp(NoAnswer(g.row.Limit))
		}
		return
	}
	g.show(s)
	g.row.Failed(ctx, endZombie, g.EndZombie(ctx, g.session))
}

// pollBoth reads what the guard's session does, and whether a prepared transaction holds
// the unit's row. If the session is unknown, such a prepared transaction is the only
// evidence, and proves that the guard waits.
func (g *guardWatch) pollBoth(ctx context.Context) (s Session, known bool) {
	if g.session != 0 {
		s, known = g.row.Poll(ctx, g.session)
	}
	if g.session != 0 && !slices.ContainsFunc(s.blockers, func(b blocker) bool { return b.PID == 0 }) {
		return s, known
	}
	limited, cancel := context.WithTimeout(ctx, PollLimit)
	defer cancel()
	p, err := g.row.Checkpoints.HolderPrepared(limited, g.row.DB, g.row.Unit)
	g.row.Failed(ctx, "find prepared transaction", err)
	if s.prepared = p; p != (progress.Prepared{}) && g.session == 0 {
		s.Busy, known = true, true
	}
	return s, known
}

// show reports whose lock the guard waits for.
func (g *guardWatch) show(s Session) {
	if !s.waits() {
		g.waits = 0
		g.row.Over()
		return
	}
	g.waits++
	g.row.Waits(fmt.Errorf("worker: a batch of consumer %q waits for a lock of %s", g.row.Unit, s.blockedBy()), g.waits&(g.waits-1) == 0)
}
