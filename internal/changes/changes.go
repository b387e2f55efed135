package changes

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Count is an SQL expression for the counter, 0 before the first Notify.
func Count(table ident.Table) string {
	return `coalesce((SELECT count FROM ` + table.SQL() + `), 0)`
}

// channel is an SQL expression for the name of the channel. A table's oid is
// its own within the database, and so are channels.
func channel(table ident.Table) string {
	return `'worker_changes_' || to_regclass('` + table.SQL() + `')::oid::text`
}

// waits is an SQL expression for the name of the channel that WaitChannel returns.
func waits(table ident.Table) string {
	return `'worker_waits_' || to_regclass('` + table.SQL() + `')::oid::text`
}

// Say sends several texts on a channel, in one statement.
func Say(ctx context.Context, q store.Querier, channel string, texts []string) error {
	list, err := json.Marshal(texts)
	if err != nil {
		return err
	}
	_, err = q.ExecContext(ctx, `SELECT count(pg_notify($1::text, said)) FROM jsonb_array_elements_text($2::jsonb) AS said`, channel, string(list))
	return err
}

// Ask sends a text on the channel that WaitChannel returns. A standby sends nothing.
func Ask(ctx context.Context, q store.Querier, table ident.Table, text string) error {
	_, err := q.ExecContext(ctx, `SELECT pg_notify(`+waits(table)+`, $1::text) WHERE NOT pg_is_in_recovery()`, text)
	return err
}

// Notify announces news. Call it when the news is committed, or as the last
// statement of its transaction: the counter is one row, which keeps others
// waiting.
func Notify(ctx context.Context, q store.Querier, table ident.Table) error {
	_, err := q.ExecContext(ctx, `
WITH counted AS (
	INSERT INTO `+table.SQL()+` AS c ("only", count) VALUES ($1::boolean, 1)
	ON CONFLICT ("only") DO UPDATE SET count = c.count + 1
	RETURNING 1
)
SELECT pg_notify(`+channel(table)+`, '') FROM counted`, true)
	if err != nil {
		return fmt.Errorf("announce a change in %s: %w", table, err)
	}
	return nil
}

// Tell wakes those who listen, and counts nothing: so it locks nothing either, and may be
// part of a transaction that stays open. Those who do not listen must find the news by
// themselves.
func Tell(ctx context.Context, q store.Querier, table ident.Table) error {
	if _, err := q.ExecContext(ctx, `SELECT pg_notify(`+channel(table)+`, '')`); err != nil {
		return fmt.Errorf("tell of a change in %s: %w", table, err)
	}
	return nil
}

// Channel returns the name of the channel that Notify uses.
func Channel(ctx context.Context, q store.Querier, table ident.Table) (string, error) {
	return lookUp(ctx, q, table, channel(table))
}

// WaitChannel returns the name of the channel on which the processes of a set of
// tables tell each other who waits for what.
func WaitChannel(ctx context.Context, q store.Querier, table ident.Table) (string, error) {
	return lookUp(ctx, q, table, waits(table))
}

func lookUp(ctx context.Context, q store.Querier, table ident.Table, channel string) (name string, err error) {
	if err := q.QueryRowContext(ctx, `SELECT coalesce(`+channel+`, '')`).Scan(&name); err != nil {
		return "", fmt.Errorf("look up the channel of table %s: %w", table, err)
	}
	if name == "" {
		return "", fmt.Errorf("look up the channel of table %s: there is no such table", table)
	}
	return name, nil
}
