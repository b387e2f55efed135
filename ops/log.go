package ops

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// logOps are the operations on the log and on the transactions that hold it back.
type logOps struct{ *consumerCore }

// Log is the state of the log.
type Log struct {
	Head    int64 // the highest position of a visible event
	Settled int64 // every position up to it is visible, or void
	// Safe is the position up to which consumers may read. It is at least Settled. The latest
	// heartbeat of a worker may report a higher value.
	Safe int64
	// Open counts the open transactions that have drawn positions.
	Open       int
	OldestOpen time.Duration // age of the oldest of them; 0: there is none, or this role may not see the age
}

// Log returns the state of the log. It reads the fields one after the other, so a higher field
// may be older.
func (o *logOps) Log(ctx context.Context) (l Log, err error) {
	fail := func(err error) (Log, error) { return Log{}, o.fail("read the state of the log", err) }
	if l.Settled, err = frontier.Settled(ctx, o.db, sequenced{o.t}, o.t.Settled); err != nil {
		return fail(err)
	}
	if err = o.db.QueryRowContext(ctx, o.logSQL()).Scan(&l.Head, &l.Safe); err != nil {
		return fail(err)
	}
	l.Safe = max(l.Safe, l.Settled)
	open, err := frontier.OpenTransactions(ctx, o.db, sequenced{o.t}, false)
	if err != nil {
		return fail(err)
	}
	for _, t := range open {
		l.Open, l.OldestOpen = l.Open+1, max(l.OldestOpen, t.Age)
	}
	return l, nil
}

func (o *logOps) logSQL() string {
	return `
SELECT coalesce((SELECT max(` + positionColumn + `) FROM ` + o.t.Events.SQL() + `), 0), coalesce((
	SELECT CASE jsonb_typeof(status->'Safe') WHEN 'number' THEN (status->>'Safe')::numeric::bigint END
	FROM ` + o.t.Nodes.SQL() + ` ORDER BY heartbeat_at > clock_timestamp(), heartbeat_at DESC LIMIT 1), 0)`
}

// Blocker is an open transaction that may hold the consumers back.
type Blocker = frontier.OpenTransaction

// Blockers returns the open transactions that have drawn positions of the log, the oldest
// first. Positions that they may still append are above Settled. A young transaction is normal.
// queries asks for the texts of their latest statements, which may contain users' values.
func (o *logOps) Blockers(ctx context.Context, queries bool) ([]Blocker, error) {
	all, err := frontier.OpenTransactions(ctx, o.db, sequenced{o.t}, queries)
	return all, o.fail("list the blockers", err)
}

// Terminate ends the session of a blocker with pg_terminate_backend, which rolls its
// transaction back. If the session is no longer in that transaction, Terminate returns
// [ErrNotFound]. The operation is recorded with an empty Consumer. The role must be a member
// of pg_signal_backend, or of the session's role. A prepared transaction has no session.
func (o *logOps) Terminate(ctx context.Context, b Blocker, by By) error {
	err := by.check()
	switch {
	case b.PID == 0:
		err = errtext.Join(err, fmt.Errorf("%w: a prepared transaction has no session: %s", ErrInvalid, b.Remedy()))
	case b.Start == nil && b.State == "disabled":
		err = errtext.Join(err, fmt.Errorf("%w: track_activities is off for session %d, so the start of its transaction is unknown, and a later transaction could be ended: set it to on", ErrInvalid, b.PID))
	case b.Start == nil || b.BackendStart == nil:
		err = errtext.Join(err, fmt.Errorf("%w: this role may not see the start of the transaction of session %d, so a later transaction could be ended: GRANT pg_read_all_stats to it", ErrInvalid, b.PID))
	}
	if err == nil {
		err = o.terminate(ctx, b, by)
	}
	return o.fail(fmt.Sprintf("%s of session %d", KindTerminate, b.PID), err)
}

// terminate calls accept itself, before it ends the session, since the end of a session cannot
// be rolled back.
func (o *logOps) terminate(ctx context.Context, b Blocker, by By) error {
	dry := o.dry
	if dry != nil && dry.accept != nil {
		dry, o.dry.recorded = nil, nil
	}
	return o.transact(ctx, dry, func(tx *sql.Tx) (id int64, err error) {
		detail := terminateDetail{PID: b.PID, User: b.User, Application: b.Application, Client: b.Client, Start: b.Start.UTC()}
		if id, err = o.record(ctx, tx, Operation{Kind: KindTerminate, By: by}, detail); err == nil {
			err = mayEnd(ctx, tx, b)
		}
		if err == nil && o.dry != nil && dry == nil {
			err = o.dry.accept(o.dry.recorded)
		}
		if err == nil && dry == nil {
			var ended bool
			if ended, err = session(ctx, tx, b, "pg_terminate_backend(pid)"); err == nil && !ended {
				err = errNoBlocker
			}
		}
		return id, err
	})
}

// mayEnd returns an error if the session is no longer in the blocker's transaction, or if this
// role may not end it.
func mayEnd(ctx context.Context, tx *sql.Tx, b Blocker) error {
	may, err := session(ctx, tx, b, `CASE
	WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN true
	WHEN (SELECT rolsuper FROM pg_roles WHERE oid = usesysid) THEN false
	ELSE pg_has_role(usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')
END`)
	if err == nil && !may {
		err = fmt.Errorf("%w: this role may not end a session of role %q: GRANT pg_signal_backend to it; a session of a superuser takes a superuser", ErrInvalid, b.User)
	}
	return err
}

// session evaluates an expression for the session of a blocker.
func session(ctx context.Context, tx *sql.Tx, b Blocker, expression string) (is bool, err error) {
	var found sql.NullBool
	err = tx.QueryRowContext(ctx, `
SELECT bool_or(`+expression+`) FROM pg_stat_activity
WHERE pid = $1::int AND backend_start = $2::timestamptz AND xact_start = $3::timestamptz`,
		b.PID, b.BackendStart.Format(time.RFC3339Nano), b.Start.Format(time.RFC3339Nano)).Scan(&found)
	if err == nil && !found.Valid {
		err = errNoBlocker
	}
	return found.Bool, err
}

type terminateDetail struct {
	PID         int       `json:"pid"`
	User        string    `json:"user"`
	Application string    `json:"application"`
	Client      string    `json:"client"`
	Start       time.Time `json:"transaction_start"`
}

// Event returns the event at a position, with its payload. It returns [ErrNotFound] if no event
// is visible there.
func (o *logOps) Event(ctx context.Context, position int64) (store.PersistedEvent, error) {
	log := storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNames(store.Names{Events: o.t.Events.String()})))
	all, err := log.ReadRanges(ctx, o.db, []store.Range{{First: position, Last: position}}, 1)
	if err == nil && len(all) == 0 {
		err = errNoEvent
	}
	if err != nil {
		return store.PersistedEvent{}, o.fail(fmt.Sprintf("read the event at position %d", position), err)
	}
	return all[0], nil
}
