package consume

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

const (
	// pollSessionEvery is the pause between two polls of a session.
	pollSessionEvery = time.Second
	// pollSessionLimit is the time limit of such a poll. It uses another connection, which
	// may be dead, too.
	pollSessionLimit = 2 * time.Second
)

// sessionState is the statement that returns whether session $1 is busy, and whose locks it
// waits for. Without a row the session has ended. Where the server does not track
// activities, the state is hidden, and the session counts as busy.
const sessionState = `
SELECT coalesce(a.state, '') NOT LIKE 'idle%', coalesce((
	SELECT json_agg(json_build_object(
		'pid', b.pid,
		'application', coalesce(o.application_name, ''),
		'state', coalesce(o.state, ''),
		'age', coalesce(extract(epoch FROM clock_timestamp() - o.state_change), 0)
	) ORDER BY b.pid)
	FROM (SELECT DISTINCT unnest(pg_blocking_pids(a.pid))) AS b(pid)
	LEFT JOIN pg_stat_activity AS o ON o.pid = b.pid), '[]')::text
FROM pg_stat_activity AS a WHERE a.pid = $1::bigint`

// session is what the server does for a connection that waits for an answer.
type session struct {
	busy     bool // runs a statement or waits for a lock
	blockers []blocker
	prepared progress.Prepared // holds the consumer's row; one of blockers, if those are known
}

// blocker is a session whose lock another session waits for.
type blocker struct {
	PID         int     `json:"pid"` // 0: a prepared transaction
	Application string  `json:"application"`
	State       string  `json:"state"` // empty: hidden from this role
	Age         float64 `json:"age"`   // of the state, in seconds
}

// querySession returns what the session with a pid does.
func querySession(ctx context.Context, q store.Querier, pid int64) (s session, err error) {
	var blockers string
	err = q.QueryRowContext(ctx, sessionState, pid).Scan(&s.busy, &blockers)
	if errors.Is(err, sql.ErrNoRows) {
		return session{}, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(blockers), &s.blockers)
	}
	return s, err
}

// blockedBy describes the sessions that hold the lock, each with its remedy.
func (s session) blockedBy() string {
	var all []string
	for _, b := range s.blockers {
		remedy := frontier.Holder{PID: b.PID}.Remedy()
		switch {
		case b.PID == 0 && s.prepared != (progress.Prepared{}):
			continue // described below
		case b.PID == 0:
			all = append(all, "a prepared transaction (see pg_prepared_xacts): COMMIT PREPARED or ROLLBACK PREPARED it")
		case b.State == "":
			all = append(all, fmt.Sprintf("pid %d: %s", b.PID, remedy))
		default:
			since := time.Duration(b.Age * float64(time.Second)).Round(time.Second)
			all = append(all, fmt.Sprintf("pid %d (application_name %q, %s for %v): %s", b.PID, b.Application, b.State, since, remedy))
		}
	}
	if s.prepared != (progress.Prepared{}) {
		all = append(all, s.prepared.String())
	}
	return strings.Join(all, "; ")
}

// waits reports whether the session is known to wait for a lock.
func (s session) waits() bool { return len(s.blockers) > 0 || s.prepared != (progress.Prepared{}) }

// sessionOf returns the pid of the server process behind conn, or 0 if it is unknown.
// lib/pq does not expose the pid, and proxies return one of their own.
func (w *Worker) sessionOf(conn *sql.Conn) int64 {
	if !w.pooling.PIDKnown {
		return 0
	}
	return pgdriver.PID(conn)
}

// pollAfter calls poll after patience and then every pollSessionEvery, until end is called.
// end waits for a running poll.
func pollAfter(ctx context.Context, patience time.Duration, poll func(ctx context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	timer := time.AfterFunc(patience, func() {
		defer close(done)
		for poll(ctx); backoff.Sleep(ctx, pollSessionEvery); poll(ctx) {
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-done
		}
	}
}

// staleness decides whether a connection without an answer is dead. The zero value has no
// evidence.
type staleness struct {
	silent int       // polls in a row that found the session idle
	proof  time.Time // time of the last poll that found the session busy
}

// dead reports whether the connection is dead. A single idle poll is not enough: the
// statement or its answer may be in transit. Where no poll succeeds, limit decides.
func (v *staleness) dead(s session, known bool, now time.Time, limit time.Duration) bool {
	switch {
	case known && (s.busy || len(s.blockers) > 0):
		v.silent, v.proof = 0, now
	case known:
		v.silent++
	}
	return v.silent >= 2 || now.Sub(v.proof) >= limit
}

// errSilent is the error of a statement whose session is idle.
var errSilent = errors.New("the connection is dead: the server's session waits for a statement, or has ended")

// reading runs a read of the loop with Worker.reading.
func (c *consumerLoop) reading(ctx context.Context, session func() int64, read func(ctx context.Context) error) error {
	return c.w.reading(ctx, session, read, c.unit.name)
}

// reading runs a read within limits.read. session returns the read's pid, or 0 while it is
// unknown. The read ends early if the server's session is idle, because then no answer will
// come. consumer is the reading consumer, or empty if several read.
func (w *Worker) reading(ctx context.Context, session func() int64, read func(ctx context.Context) error, consumer string) error {
	return w.bounded(ctx, w.limits.read, func(around context.Context) error {
		ctx, giveUp := context.WithCancelCause(around)
		defer giveUp(nil)
		v := staleness{proof: time.Now()}
		defer pollAfter(ctx, w.limits.quick, func(ctx context.Context) {
			pid := session()
			if pid == 0 {
				return
			}
			s, known := w.pollSession(ctx, pid, consumer)
			if v.dead(s, known, time.Now(), w.limits.read) && ctx.Err() == nil {
				giveUp(errSilent)
			}
		})()
		return withCause(ctx, around, read(ctx))
	})
}

// pollSession returns what a session does, as read on another connection.
func (w *Worker) pollSession(ctx context.Context, pid int64, consumer string) (s session, known bool) {
	limited, cancel := context.WithTimeout(ctx, pollSessionLimit)
	defer cancel()
	s, err := querySession(limited, w.db, pid)
	w.taskFailed(ctx, "inspect session", consumer, err)
	return s, err == nil
}

// watchGuard watches a guard on conn. The guard may wait long for another session's lock,
// and must not wait for an answer that never comes. In that case watchGuard calls giveUp.
//
// The caller calls end with the guard's error. If a time limit of the role ended the wait,
// end searches for a dead holder of the row once more. The limit may be shorter than the
// time to the first poll.
func (c *consumerLoop) watchGuard(ctx context.Context, giveUp context.CancelCauseFunc, conn *sql.Conn) (end func(err error)) {
	g := &guardWatch{c: c, session: c.w.sessionOf(conn), giveUp: giveUp, staleness: staleness{proof: time.Now()}}
	g.endZombies = c.endZombies(g.session)
	stop := pollAfter(ctx, c.w.limits.lock, g.poll)
	return func(err error) {
		stop()
		switch {
		case err == nil:
			c.zombie = suspicion{}
		case pgdriver.IsTimeLimit(err) && ctx.Err() == nil:
			limited, cancel := context.WithTimeout(ctx, pollSessionLimit)
			defer cancel()
			c.w.taskFailed(ctx, "end dead batch", c.unit.name, g.endZombies(limited))
		}
		c.status.setOngoing(nil, 0)
		c.w.observers.End(c.about(observe.ConditionLock))
	}
}

// guardWatch watches one guard.
type guardWatch struct {
	c          *consumerLoop
	session    int64 // pid of the guard's session; 0: unknown
	giveUp     context.CancelCauseFunc
	endZombies func(ctx context.Context) error
	staleness
	waits int // polls in a row that found the guard waiting for a lock
}

func (g *guardWatch) poll(ctx context.Context) {
	s, known := g.pollBoth(ctx)
	if ctx.Err() != nil {
		return // the guard has returned
	}
	if g.dead(s, known, time.Now(), g.c.guardLimit()) {
		if g.c.w.sweepNow.Send(); g.silent > 0 {
			g.giveUp(errSilent)
		} else {
			g.giveUp(noAnswer(g.c.guardLimit()))
		}
		return
	}
	g.show(ctx, s)
	g.c.w.taskFailed(ctx, "end dead batch", g.c.unit.name, g.endZombies(ctx))
}

// pollBoth reads what the guard's session does, and whether a prepared transaction holds
// the consumer's row. If the session is unknown, such a prepared transaction is the only
// evidence, and proves that the guard waits.
func (g *guardWatch) pollBoth(ctx context.Context) (s session, known bool) {
	if g.session != 0 {
		s, known = g.c.w.pollSession(ctx, g.session, g.c.unit.name)
	}
	if g.session != 0 && !slices.ContainsFunc(s.blockers, func(b blocker) bool { return b.PID == 0 }) {
		return s, known
	}
	limited, cancel := context.WithTimeout(ctx, pollSessionLimit)
	defer cancel()
	p, err := g.c.w.checkpoints.HolderPrepared(limited, g.c.w.db, g.c.unit.name)
	g.c.w.taskFailed(ctx, "find prepared transaction", g.c.unit.name, err)
	if s.prepared = p; p != (progress.Prepared{}) && g.session == 0 {
		s.busy, known = true, true
	}
	return s, known
}

// guardLimit is the time limit of a guard while its blocker is unknown. It is longer than
// another worker's batch.
func (c *consumerLoop) guardLimit() time.Duration { return 2*c.w.cfg.BatchTimeout + c.w.limits.guard }

// show reports whose lock the guard waits for: in the status for as long as it waits, and
// to the observers after growing pauses.
func (g *guardWatch) show(ctx context.Context, s session) {
	if !s.waits() {
		g.waits = 0
		g.c.status.setOngoing(nil, 0)
		g.c.w.observers.End(g.c.about(observe.ConditionLock))
		return
	}
	g.waits++
	err := fmt.Errorf("worker: a batch of consumer %q waits for a lock of %s", g.c.unit.name, s.blockedBy())
	g.c.status.setOngoing(err, 0)
	g.c.w.observers.Begin(g.c.about(observe.ConditionLock), err)
	if g.waits&(g.waits-1) == 0 {
		g.c.w.observers.Notify(observe.ConsumerWaiting{Consumer: g.c.unit.name, Condition: observe.ConditionLock, Err: err})
	}
}
