package schedule

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// row is the row of a schedule in the table.
type row struct {
	name   string
	hash   string
	next   time.Time // zero: there is no next tick
	last   time.Time // the latest tick with a job; zero: none yet
	paused bool
	byHand bool // next_at is infinite; only hold reads it
}

// toMicros returns SQL for a time in microseconds, which every driver and server reads alike. It
// evaluates a clock once. NULL and 'infinity' give NULL: there is no next tick.
func toMicros(of string) string {
	return `(SELECT ` + pgdriver.Microseconds(`c.at`) + ` FROM (SELECT nullif(` + of + `, 'infinity') AS at) AS c)`
}

const fromMicros = `timestamptz 'epoch' + %s::bigint * interval '1 microsecond'`

func fromMicro(micros sql.NullInt64) time.Time {
	if !micros.Valid {
		return time.Time{}
	}
	return time.UnixMicro(micros.Int64).UTC()
}

func toMicro(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// readRows reads the rows of some schedules, and the database's clock.
func readRows(ctx context.Context, q store.Querier, table ident.Table, names []string) (rows []row, now time.Time, err error) {
	list, err := json.Marshal(names)
	if err != nil {
		return nil, now, err
	}
	rows, err = pgdriver.QueryAll(ctx, q, func(r *sql.Rows) (found row, err error) {
		var next, last, at sql.NullInt64
		err = r.Scan(&found.name, &found.hash, &next, &last, &found.paused, &at)
		found.next, found.last, now = fromMicro(next), fromMicro(last), fromMicro(at)
		return found, err
	}, `
SELECT name, hash, `+toMicros(`next_at`)+`, `+toMicros(`last_at`)+`, paused_at IS NOT NULL, `+toMicros(`clock_timestamp()`)+`
FROM `+table.SQL()+` WHERE name IN (SELECT jsonb_array_elements_text($1::jsonb))`, string(list))
	if err != nil {
		return nil, now, fmt.Errorf("read the schedules: %w", err)
	}
	return rows, now, nil
}

// bounded makes the server end a transaction that becomes idle while it holds the row of a
// schedule. The machine of the client may be gone.
const bounded = `set_config('idle_in_transaction_session_timeout', '5000', true)`

// patient disables the lock_timeout of the role for the wait for such a row. It must be evaluated
// before the statement waits.
const patient = `set_config('lock_timeout', '0', true) IS NOT NULL`

// hold inserts the row of a schedule without a tick, or locks the existing row. It returns the row,
// and the database's clock after the lock. The previous holder of the row has enqueued no later
// tick.
func hold(ctx context.Context, tx store.Querier, table ident.Table, name, hash string) (r row, now time.Time, err error) {
	var next, last, micros sql.NullInt64
	var limit string
	r.name = name
	err = tx.QueryRowContext(ctx, `
INSERT INTO `+table.SQL()+` AS s (name, hash, next_at) SELECT $1::text, $2::text, NULL WHERE `+patient+`
ON CONFLICT (name) DO UPDATE SET hash = s.hash
RETURNING hash, `+toMicros(`next_at`)+`, `+toMicros(`last_at`)+`, `+toMicros(`clock_timestamp()`)+`, `+bounded+`, coalesce(NOT isfinite(next_at), false)`, name, hash).Scan(&r.hash, &next, &last, &micros, &limit, &r.byHand)
	if err != nil {
		return r, now, fmt.Errorf("place the schedule: %w", err)
	}
	r.next, r.last = fromMicro(next), fromMicro(last)
	return r, fromMicro(micros), nil
}

// place sets the times and the next tick of a locked row.
func place(ctx context.Context, tx store.Querier, table ident.Table, name, hash string, next time.Time) error {
	_, err := tx.ExecContext(ctx, `UPDATE `+table.SQL()+` SET hash = $2::text, next_at = `+fmt.Sprintf(fromMicros, `$3`)+` WHERE name = $1::text`, name, hash, toMicro(next))
	if err != nil {
		return fmt.Errorf("place the schedule: %w", err)
	}
	return nil
}

// advance moves a schedule from the tick that was read to the next tick, and reports whether this
// statement did so. Another process may have been faster, or may hold the row. Another program may
// have given the schedule other times. After a pause, ticks up to the time of the resume are
// dropped. A resume in the future was before the clock was set back, and is ignored. The tick is
// compared in the form in which it was read, since the column may hold '-infinity'.
func advance(ctx context.Context, tx store.Querier, table ident.Table, r row, last, next time.Time) (pass time.Time, moved bool, err error) {
	var micros sql.NullInt64
	var limit string
	err = tx.QueryRowContext(ctx, `
UPDATE `+table.SQL()+` SET last_at = coalesce(`+fmt.Sprintf(fromMicros, `$3`)+`, last_at), next_at = `+fmt.Sprintf(fromMicros, `$4`)+`
WHERE name = (SELECT name FROM `+table.SQL()+`
	WHERE name = $1::text AND hash = $5::text AND `+pgdriver.Microseconds(`next_at`)+` = $2::bigint FOR NO KEY UPDATE SKIP LOCKED)
RETURNING `+toMicros(`CASE WHEN paused_at IS NOT NULL THEN clock_timestamp() WHEN resumed_at <= clock_timestamp() THEN resumed_at END`)+`, `+bounded,
		r.name, toMicro(r.next), toMicro(last), toMicro(next), r.hash).Scan(&micros, &limit)
	if errors.Is(err, sql.ErrNoRows) {
		return pass, false, nil
	}
	if err != nil {
		return pass, false, fmt.Errorf("move the schedule on: %w", err)
	}
	return fromMicro(micros), true, nil
}
