package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Order identifies events that follow each other into the dead letters. It is the aggregate
// or, for a consumer with its own key, that key without a type.
type Order struct {
	Type string `json:"order_type"`
	ID   string `json:"order_id"`
}

// DeadLetter is an event that becomes a dead letter. Error is empty if the event only follows
// an earlier dead letter of its order.
type DeadLetter struct {
	Order
	Type      string    `json:"type"` // of the aggregate
	ID        string    `json:"id"`   // of the aggregate
	Position  int64     `json:"position"`
	EventID   uuid.UUID `json:"event_id"`
	EventType string    `json:"event_type"`
	Error     string    `json:"error,omitempty"`
	Attempts  int       `json:"attempts"`
	Forget    bool      `json:"forget,omitempty"` // of a dead letter that is restored: see Retry
	Replay    bool      `json:"-"`                // the event follows events that are replayed; it has not failed
}

// Retry is a dead letter for which an operator requested another attempt.
type Retry struct {
	Position int64
	Attempts int
	Replay   bool  // the dead letter belongs to an aggregate that is replayed
	Forget   bool  // the consumer forgets the aggregate first
	Keyless  bool  // the order is the aggregate, not a key
	Err      error // the error of this attempt; nil: the event was handled
}

// Flags of a dead letter, as the search for retries returns them.
const (
	isReplay = 1 << iota
	isForget
	isKeyless
)

// DeadLettersCounted is the maximum count of aggregates, or keys, with dead letters.
const DeadLettersCounted = 100

// retriesAtOnce is the maximum number of requests that one statement reads, and of dead
// letters of each order.
const retriesAtOnce = 30

// deadLettersSQL are the statements on dead letters. The cost of a statement grows with the
// size of its request, not with the number of dead letters. So each search begins at a place
// in an index and ends after a few rows. A search orders by columns that only this index has.
// The planner does not know its limit. Otherwise the planner sorts all rows if its statistics
// are outdated.
type deadLettersSQL struct{ add, have, next, remove, removeFirst, keep string }

func newDeadLettersSQL(deadLetters, incarnation string) deadLettersSQL {
	// A search that decides something returns the incarnation, also if it finds no row.
	proven := func(search string) string {
		return `
SELECT coalesce(` + incarnation + `, ''), found.a, found.b, found.c FROM (SELECT 1) AS one LEFT JOIN (` + search + `) AS found ON true
ORDER BY found.a`
	}
	return deadLettersSQL{
		add: `
INSERT INTO ` + deadLetters + ` AS d (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts, order_key, retry_at, replay)
SELECT $1::text, l.position, l.type, l.id, l.event_id, l.event_type, l.error, l.attempts, CASE WHEN l.order_type = '' THEN l.order_id END, o.retry_at,
	l.error IS NULL AND coalesce(o.replay, false)
FROM jsonb_to_recordset($2::jsonb) AS l(position bigint, type text, id text, event_id uuid, event_type text, error text, attempts int, order_type text, order_id text)
LEFT JOIN LATERAL (` + firstOf(deadLetters, "l.order_type, l.order_id", 1) + `) AS o ON o.order_type = l.order_type AND o.order_id = l.order_id
ON CONFLICT (consumer_name, global_position) DO UPDATE
SET error = excluded.error, attempts = d.attempts + excluded.attempts, updated_at = clock_timestamp()`,
		have: proven(`
	SELECT a.n AS a, o.replay::int AS b, 0 AS c FROM jsonb_to_recordset($2::jsonb) AS a(n bigint, order_type text, order_id text)
	CROSS JOIN LATERAL (` + firstOf(deadLetters, "a.order_type, a.order_id", 1) + `) AS o
	WHERE o.order_type = a.order_type AND o.order_id = a.order_id`),
		next: `
WITH asked AS MATERIALIZED (
	SELECT order_type AS type, order_id AS id FROM ` + deadLetters + `
	WHERE consumer_name = $1::text AND retry_at IS NOT NULL
	ORDER BY retry_at, global_position LIMIT (SELECT ` + strconv.Itoa(retriesAtOnce) + `)
)` + proven(`
	SELECT o.global_position AS a, o.attempts AS b,
		o.replay::int + 2 * o.forget::int + 4 * (o.order_key IS NULL)::int AS c FROM (SELECT DISTINCT type, id FROM asked) AS a
	CROSS JOIN LATERAL (`+firstOf(deadLetters, "a.type, a.id", retriesAtOnce)+`) AS o
	WHERE o.order_type = a.type AND o.order_id = a.id`),
		removeFirst: `
WITH gone AS (
	DELETE FROM ` + deadLetters + ` WHERE consumer_name = $1::text AND global_position = $2::bigint RETURNING aggregate_type, aggregate_id
)
UPDATE ` + deadLetters + ` SET forget = false
WHERE consumer_name = $1::text AND global_position <> $2::bigint AND global_position = ANY (ARRAY(
	SELECT o.global_position FROM gone CROSS JOIN LATERAL (
		SELECT global_position, forget FROM ` + deadLetters + `
		WHERE consumer_name = $1::text AND (aggregate_type, aggregate_id) >= (gone.aggregate_type, gone.aggregate_id) AND (aggregate_type, aggregate_id) <= (gone.aggregate_type, gone.aggregate_id)
		ORDER BY aggregate_type, aggregate_id, global_position LIMIT (SELECT ` + strconv.Itoa(math.MaxInt64) + `)) AS o
	WHERE o.forget))`,
		remove: `DELETE FROM ` + deadLetters + ` WHERE consumer_name = $1::text AND global_position = $2::bigint`,
		keep: `
UPDATE ` + deadLetters + `
SET retry_at = NULL, replay = false, updated_at = clock_timestamp(),
	error = CASE WHEN global_position = $2::bigint THEN $3::text ELSE error END,
	attempts = attempts + CASE WHEN global_position = $2::bigint THEN 1 ELSE 0 END
WHERE consumer_name = $1::text AND global_position = ANY (ARRAY(
	SELECT o.global_position FROM (
		SELECT order_type AS type, order_id AS id FROM ` + deadLetters + `
		WHERE consumer_name = $1::text AND global_position = $2::bigint) AS a
	CROSS JOIN LATERAL (
		SELECT global_position FROM ` + deadLetters + `
		WHERE consumer_name = $1::text AND (order_type, order_id) >= (a.type, a.id) AND (order_type, order_id) <= (a.type, a.id)
		ORDER BY order_type, order_id, global_position LIMIT (SELECT ` + strconv.Itoa(math.MaxInt64) + `)) AS o))`,
	}
}

// firstOf returns SQL for the first n dead letters at or after an order. The dead letters of
// the order itself come first.
func firstOf(deadLetters, order string, n int) string {
	return `
	SELECT * FROM ` + deadLetters + `
	WHERE consumer_name = $1::text AND (order_type, order_id) >= (` + order + `)
	ORDER BY order_type, order_id, global_position LIMIT (SELECT ` + strconv.Itoa(n) + `)`
}

// replaysCounted is the maximum number of replayed aggregates that the count of the others
// skips.
const replaysCounted = 1_000

// deadLetterColumns returns SQL for three columns that summarize a consumer's dead letters.
// The first is the number of aggregates or keys with dead letters that are not replayed. The
// second reports whether there are dead letters at all, the third whether some are to be
// retried. The count goes from one aggregate or key to the next.
func deadLetterColumns(deadLetters string) string {
	return `(
	WITH RECURSIVE a AS (
		(SELECT (NOT replay)::int AS failed, replay::int AS replayed, order_type AS type, order_id AS id FROM ` + deadLetters + `
		WHERE consumer_name = $1::text ORDER BY order_type, order_id, global_position LIMIT 1)
		UNION ALL
		SELECT a.failed + (NOT o.replay)::int, a.replayed + o.replay::int, o.order_type, o.order_id FROM a CROSS JOIN LATERAL (
			SELECT order_type, order_id, replay FROM ` + deadLetters + `
			WHERE consumer_name = $1::text AND (order_type, order_id) > (a.type, a.id)
			ORDER BY order_type, order_id, global_position LIMIT 1) AS o
		WHERE a.failed < ` + strconv.Itoa(DeadLettersCounted) + ` AND a.replayed < ` + strconv.Itoa(replaysCounted) + `
	) SELECT coalesce(max(failed), 0) FROM a),
	(SELECT order_type FROM ` + deadLetters + `
	WHERE consumer_name = $1::text ORDER BY order_type, order_id, global_position LIMIT 1) IS NOT NULL,
	(SELECT retry_at FROM ` + deadLetters + `
	WHERE consumer_name = $1::text AND retry_at IS NOT NULL ORDER BY retry_at, global_position LIMIT 1) IS NOT NULL`
}

// AddDeadLetters adds dead letters. A dead letter whose order is to be retried is retried,
// too.
func (c Checkpoints) AddDeadLetters(ctx context.Context, tx store.Querier, unit string, deadLetters []DeadLetter) error {
	rows, err := json.Marshal(deadLetters)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, c.deadLetters.add, unit, string(rows)); err != nil {
		return fmt.Errorf("worker: write %d dead letters of consumer %q: %w", len(deadLetters), unit, err)
	}
	return nil
}

// HaveDeadLetters returns the orders that have dead letters, and the replayed ones among them.
func (c Checkpoints) HaveDeadLetters(ctx context.Context, q store.Querier, unit, token string, orders []Order) (have, replayed map[Order]bool, err error) {
	type asked struct {
		Order
		N int `json:"n"`
	}
	var all []asked
	have, replayed = map[Order]bool{}, map[Order]bool{}
	for _, o := range orders {
		if !have[o] {
			have[o], all = true, append(all, asked{o, len(all)})
		}
	}
	clear(have)
	if len(all) == 0 {
		return have, replayed, nil
	}
	list, err := json.Marshal(all)
	if err != nil {
		return nil, nil, err
	}
	found, err := proven(ctx, q, token, c.deadLetters.have, unit, string(list))
	if err != nil {
		return nil, nil, fmt.Errorf("worker: find dead letters of consumer %q: %w", unit, err)
	}
	for _, f := range found {
		have[all[f[0]].Order] = true
		if f[1] != 0 {
			replayed[all[f[0]].Order] = true
		}
	}
	return have, replayed, nil
}

// NextRetries returns some of the dead letters to retry, in order of position. For each
// aggregate or key it returns the first ones, without gaps.
func (c Checkpoints) NextRetries(ctx context.Context, q store.Querier, unit, token string) (all []Retry, err error) {
	found, err := proven(ctx, q, token, c.deadLetters.next, unit)
	if err != nil {
		return nil, fmt.Errorf("worker: find dead letters of consumer %q to retry: %w", unit, err)
	}
	for _, f := range found {
		all = append(all, Retry{Position: f[0], Attempts: int(f[1]), Replay: f[2]&isReplay > 0, Forget: f[2]&isForget > 0, Keyless: f[2]&isKeyless > 0})
	}
	return all, nil
}

// proven returns the triples of numbers that a search finds. It returns store.ErrIncarnation
// if another incarnation than token answers.
func proven(ctx context.Context, q store.Querier, token, search string, args ...any) (found [][3]int64, err error) {
	type row struct {
		incarnation string
		a, b, c     sql.NullInt64 // NULL: no row was found
	}
	rows, err := pgdriver.QueryAll(ctx, q, func(rows *sql.Rows) (r row, err error) {
		err = rows.Scan(&r.incarnation, &r.a, &r.b, &r.c)
		return r, err
	}, search, args...)
	for _, r := range rows {
		if r.incarnation != token {
			return nil, store.ErrIncarnation
		}
		if r.a.Valid {
			found = append(found, [3]int64{r.a.Int64, r.b.Int64, r.c.Int64})
		}
	}
	return found, err
}

// Retried removes a dead letter that was handled. It keeps a dead letter that failed, and all
// dead letters that follow it. Once the consumer has forgotten an aggregate, it does not
// forget it again for the next dead letter. An event that fails during its replay stays a dead
// letter.
func (c Checkpoints) Retried(ctx context.Context, tx store.Querier, unit string, r *Retry, text string) (err error) {
	if r.Err == nil && r.Forget {
		_, err = tx.ExecContext(ctx, c.deadLetters.removeFirst, unit, r.Position)
	} else if r.Err == nil {
		_, err = tx.ExecContext(ctx, c.deadLetters.remove, unit, r.Position)
	} else {
		_, err = tx.ExecContext(ctx, c.deadLetters.keep, unit, r.Position, text)
	}
	if err != nil {
		return fmt.Errorf("worker: write the dead letter of consumer %q at position %d: %w", unit, r.Position, err)
	}
	return nil
}
