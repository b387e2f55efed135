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

// row is what the table knows of a schedule.
type row struct {
	name   string
	hash   string
	next   time.Time // zero: no tick is to come
	paused bool
}

// Times travel as microseconds, which every driver and server takes for the same.
const toMicros = `(extract(epoch FROM %s) * 1000000)::bigint`

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

// clock reads the database's clock.
func clock(ctx context.Context, q store.Querier) (now time.Time, err error) {
	var micros sql.NullInt64
	if err := q.QueryRowContext(ctx, `SELECT `+fmt.Sprintf(toMicros, `clock_timestamp()`)).Scan(&micros); err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return fromMicro(micros), nil
}

// look reads the rows of some schedules, and the database's clock.
func look(ctx context.Context, q store.Querier, table ident.Table, names []string) (rows []row, now time.Time, err error) {
	list, err := json.Marshal(names)
	if err != nil {
		return nil, now, err
	}
	rows, err = pgdriver.QueryAll(ctx, q, func(r *sql.Rows) (found row, err error) {
		var next, at sql.NullInt64
		err = r.Scan(&found.name, &found.hash, &next, &found.paused, &at)
		found.next, now = fromMicro(next), fromMicro(at)
		return found, err
	}, `
SELECT name, hash, `+fmt.Sprintf(toMicros, `next_at`)+`, paused_at IS NOT NULL, `+fmt.Sprintf(toMicros, `clock_timestamp()`)+`
FROM `+table.SQL()+` WHERE name IN (SELECT jsonb_array_elements_text($1::jsonb))`, string(list))
	if err != nil {
		return nil, now, fmt.Errorf("read the schedules: %w", err)
	}
	return rows, now, nil
}

// place makes the row of a schedule, or gives it its new times.
func place(ctx context.Context, q store.Querier, table ident.Table, name, hash string, next time.Time) error {
	_, err := q.ExecContext(ctx, `
INSERT INTO `+table.SQL()+` AS s (name, hash, next_at) VALUES ($1::text, $2::text, `+fmt.Sprintf(fromMicros, `$3`)+`)
ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, next_at = excluded.next_at WHERE s.hash <> excluded.hash`, name, hash, toMicro(next))
	if err != nil {
		return fmt.Errorf("place the schedule: %w", err)
	}
	return nil
}

// advance moves a schedule on from the tick that was read to the next, and reports
// whether it was this statement that did. Another process may have been faster, or
// another program may have given the schedule other times.
func advance(ctx context.Context, tx store.Querier, table ident.Table, r row, last, next time.Time) (paused, moved bool, err error) {
	err = tx.QueryRowContext(ctx, `
UPDATE `+table.SQL()+` SET last_at = coalesce(`+fmt.Sprintf(fromMicros, `$3`)+`, last_at), next_at = `+fmt.Sprintf(fromMicros, `$4`)+`
WHERE name = $1::text AND hash = $5::text AND next_at = `+fmt.Sprintf(fromMicros, `$2`)+`
RETURNING paused_at IS NOT NULL`, r.name, toMicro(r.next), toMicro(last), toMicro(next), r.hash).Scan(&paused)
	if errors.Is(err, sql.ErrNoRows) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("move the schedule on: %w", err)
	}
	return paused, true, nil
}
