package changes

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Count returns an SQL expression for the counter. It is 0 before the first Notify.
func Count(table ident.Table) string {
	return `coalesce((SELECT count FROM ` + table.SQL() + `), 0)`
}

// channel returns an SQL expression for the name of the channel. A table's oid is unique within
// the database, and channels belong to a database.
func channel(table ident.Table) string {
	return `'worker_changes_' || to_regclass('` + table.SQL() + `')::oid::text`
}

// waits returns an SQL expression for the name of WaitChannel.
func waits(table ident.Table) string {
	return `'worker_waits_' || to_regclass('` + table.SQL() + `')::oid::text`
}

// Send sends several messages on a channel, in one statement.
func Send(ctx context.Context, q store.Querier, channel string, texts []string) error {
	list, err := json.Marshal(texts)
	if err != nil {
		return err
	}
	_, err = q.ExecContext(ctx, `SELECT count(pg_notify($1::text, said)) FROM jsonb_array_elements_text($2::jsonb) AS said`, channel, string(list))
	return err
}

// SendWait sends a message on WaitChannel. A standby sends nothing.
func SendWait(ctx context.Context, q store.Querier, table ident.Table, text string) error {
	_, err := q.ExecContext(ctx, `SELECT pg_notify(`+waits(table)+`, $1::text) WHERE NOT pg_is_in_recovery()`, text)
	return err
}

// Notify raises the counter and notifies the listeners of a change. Call it after the change is
// committed, or as the last statement of its transaction. Other transactions wait for the one
// row of the counter.
func Notify(ctx context.Context, q store.Querier, table ident.Table) error {
	_, err := q.ExecContext(ctx, `
WITH counted AS (
	INSERT INTO `+table.SQL()+` AS c ("only", count) VALUES ($1::boolean, 1)
	ON CONFLICT ("only") DO UPDATE SET count = c.count + 1
	RETURNING 1
)
SELECT pg_notify(`+channel(table)+`, '') FROM counted`, true)
	if err != nil {
		return fmt.Errorf("notify of a change in %s: %w", table, err)
	}
	return nil
}

// Wake notifies the listeners without raising the counter. It takes no lock, so it may be part
// of a long transaction. Processes that do not listen must poll the change itself.
func Wake(ctx context.Context, q store.Querier, table ident.Table) error {
	if _, err := q.ExecContext(ctx, `SELECT pg_notify(`+channel(table)+`, '')`); err != nil {
		return fmt.Errorf("notify of a change in %s: %w", table, err)
	}
	return nil
}

// Channel returns the name of the channel of Notify.
func Channel(ctx context.Context, q store.Querier, table ident.Table) (string, error) {
	return channelName(ctx, q, table, channel(table))
}

// WaitChannel returns the name of the channel on which processes announce the positions that
// they wait for.
func WaitChannel(ctx context.Context, q store.Querier, table ident.Table) (string, error) {
	return channelName(ctx, q, table, waits(table))
}

func channelName(ctx context.Context, q store.Querier, table ident.Table, channel string) (name string, err error) {
	if err := q.QueryRowContext(ctx, `SELECT coalesce(`+channel+`, '')`).Scan(&name); err != nil {
		return "", fmt.Errorf("read the channel of table %s: %w", table, err)
	}
	if name == "" {
		return "", fmt.Errorf("read the channel of table %s: there is no such table", table)
	}
	return name, nil
}
