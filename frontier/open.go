package frontier

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// OpenTransaction is a transaction that has drawn positions and has not ended. A field that
// this role may not see is zero (GRANT pg_read_all_stats). If track_activities is off, Start
// is nil and State is "disabled".
type OpenTransaction struct {
	PID         int    // of the backend; 0: a prepared transaction
	GID         string // of a prepared transaction
	User        string
	Application string
	Client      string        // address; empty: a Unix socket
	State       string        // as in pg_stat_activity, or "prepared"
	Age         time.Duration // of the transaction
	StateAge    time.Duration // how long the session has been in State
	// BackendStart and Start distinguish the transaction from a later transaction with the
	// same PID.
	BackendStart, Start *time.Time
	Query               string // the latest statement; empty unless requested
}

// Remedy returns the command that ends the transaction.
func (t OpenTransaction) Remedy() string { return Holder{PID: t.PID, GID: t.GID}.Remedy() }

// OpenTransactions returns the transactions that may own positions of a log, oldest first. It
// takes no lock. The text of statements may contain data of users: set queries only where this
// data may be shown.
func OpenTransactions(ctx context.Context, q store.Querier, log store.SequenceNamer, queries bool) ([]OpenTransaction, error) {
	var o origin
	table, column := log.PositionColumn()
	if err := o.findColumn(ctx, q, table, column); err != nil {
		return nil, err
	}
	if err := o.findSequence(ctx, q); err != nil {
		return nil, err
	}
	all, err := pgdriver.QueryAll(ctx, q, func(rows *sql.Rows) (t OpenTransaction, err error) {
		var age, state int64
		var backend, start sql.NullTime
		err = rows.Scan(&t.PID, &t.GID, &t.User, &t.Application, &t.Client, &t.State, &age, &state, &backend, &start, &t.Query)
		t.Age, t.StateAge = time.Duration(age)*time.Microsecond, time.Duration(state)*time.Microsecond
		t.BackendStart, t.Start = timeOrNil(backend), timeOrNil(start)
		return t, err
	}, openSQL, o.sequenceOID, queries)
	if err != nil {
		return nil, fmt.Errorf("frontier: find the open transactions of %s: %w", o.table, err)
	}
	return all, nil
}

func timeOrNil(t sql.NullTime) *time.Time {
	if !t.Valid {
		return nil
	}
	utc := t.Time.UTC()
	return &utc
}

// openSQL returns the transactions that hold the lock of the sequence. nextval takes the lock
// until the end of its transaction. The server shows locks, sessions and prepared transactions
// at different moments. A holder that pg_stat_activity and pg_prepared_xacts do not show has
// ended. A session without a transaction has just begun or ended. A session that hides its
// activity shows no backend_type. A session with track_activities off never shows a
// transaction.
const openSQL = `
WITH locks AS MATERIALIZED (
	SELECT locktype, virtualtransaction AS vx, pid, transactionid AS xid
	FROM pg_locks
	WHERE granted AND (
		locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = $1::bigint::oid AND mode = 'RowExclusiveLock'
		OR locktype = 'transactionid' AND pid IS NULL)
), holders AS (
	SELECT DISTINCT l.vx, l.pid, x.xid
	FROM locks AS l LEFT JOIN locks AS x ON l.pid IS NULL AND x.locktype = 'transactionid' AND x.vx = l.vx
	WHERE l.locktype = 'relation'
)
SELECT coalesce(h.pid, 0), coalesce(p.gid, ''), coalesce(a.usename, p.owner, '')::text, coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''),
	CASE WHEN h.pid IS NULL THEN 'prepared' ELSE coalesce(a.state, '') END,
	greatest(coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)) * 1000000, 0), 0)::bigint,
	greatest(coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.state_change, p.prepared)) * 1000000, 0), 0)::bigint,
	a.backend_start, coalesce(a.xact_start, p.prepared), CASE WHEN $2::boolean THEN coalesce(a.query, '') ELSE '' END
FROM holders AS h
LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
LEFT JOIN pg_prepared_xacts AS p ON h.pid IS NULL AND p.transaction = h.xid
WHERE CASE WHEN h.pid IS NULL THEN p.gid IS NOT NULL
	ELSE a.pid IS NOT NULL AND (a.backend_type IS NULL OR a.state = 'disabled' OR a.xact_start IS NOT NULL) END
ORDER BY coalesce(a.xact_start, p.prepared) NULLS FIRST, h.pid`
