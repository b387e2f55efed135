package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/internal/tables"
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
	Forget    bool      `json:"forget,omitempty"`   // of a dead letter that is restored: see Retry
	Received  bool      `json:"received,omitempty"` // of a dead letter that is restored: see Retry
	Replay    bool      `json:"-"`                  // the event follows events that are replayed; it has not failed
}

// Retry is a dead letter for which an operator requested another attempt.
type Retry struct {
	Position int64
	Attempts int
	Replay   bool  // the dead letter belongs to an aggregate that is replayed
	Forget   bool  // the consumer forgets the aggregate first
	Keyless  bool  // the order is the aggregate, not a key
	Received bool  // the receipt has the event: it was handled before, and is replayed
	Err      error // the error of this attempt; nil: the event was handled
}

// Flags of a dead letter, as the search for retries returns them.
const (
	isReplay = 1 << iota
	isForget
	isKeyless
	isReceived
)

// DeadLettersCounted is the maximum count of aggregates, or keys, with dead letters.
const DeadLettersCounted = 100

// retriesAtOnce is the maximum number of requests that one statement reads, and of dead
// letters of each order.
const retriesAtOnce = 30

// deadLetters are the statements on dead letters. The cost of a statement grows with the
// size of its request, not with the number of dead letters. So each search begins at a place
// in an index and ends after a few rows. A search orders by columns that only this index has.
// The planner does not know its limit. Otherwise the planner sorts all rows if its statistics
// are outdated.
type deadLetters struct{ table, add, have, next, remove, removeFirst, keep string }

func newDeadLetters(r func(name string, more sqltext.Values) string, t tables.Tables) deadLetters {
	proven := func(search string) string { return r("proven", sqltext.Values{"search": r(search, nil)}) }
	return deadLetters{
		table: t.DeadLetters.String(), add: r("add_dead_letters", nil), have: proven("have_dead_letters"), next: r("asked_retries", nil) + "\n" + proven("next_retries"),
		removeFirst: r("remove_first_dead_letter", nil), keep: r("keep_dead_letters", nil),
		remove: `DELETE FROM ` + t.DeadLetters.SQL() + ` WHERE consumer_name = $1::text AND global_position = $2::bigint`,
	}
}

// replaysCounted is the maximum number of replayed aggregates that the count of the others
// skips.
const replaysCounted = 1_000

// AddDeadLetters adds dead letters. A dead letter whose order is to be retried is retried,
// too.
func (l deadLetters) AddDeadLetters(ctx context.Context, tx store.Querier, unit string, deadLetters []DeadLetter) error {
	rows, err := json.Marshal(deadLetters)
	if err != nil {
		return err
	}
	if err := l.write(ctx, tx, int64(len(deadLetters)), l.add, unit, string(rows)); err != nil {
		return fmt.Errorf("worker: write %d dead letters of consumer %q: %w", len(deadLetters), unit, err)
	}
	return nil
}

// write executes a statement that writes least rows at least.
func (l deadLetters) write(ctx context.Context, tx store.Querier, least int64, statement string, args ...any) error {
	result, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n >= least {
		return err
	}
	return pgdriver.Dropped(l.table)
}

// HaveDeadLetters returns the orders that have dead letters, and the replayed ones among them.
func (l deadLetters) HaveDeadLetters(ctx context.Context, q store.Querier, unit, token string, orders []Order) (have, replayed map[Order]bool, err error) {
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
	found, err := proven(ctx, q, token, l.have, unit, string(list))
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
func (l deadLetters) NextRetries(ctx context.Context, q store.Querier, unit, token string) (all []Retry, err error) {
	found, err := proven(ctx, q, token, l.next, unit)
	if err != nil {
		return nil, fmt.Errorf("worker: find dead letters of consumer %q to retry: %w", unit, err)
	}
	for _, f := range found {
		all = append(all, Retry{Position: f[0], Attempts: int(f[1]), Replay: f[2]&isReplay > 0, Forget: f[2]&isForget > 0, Keyless: f[2]&isKeyless > 0, Received: f[2]&isReceived > 0})
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
	rows, err := pgdriver.QueryAll(ctx, q, pgdriver.Columns(func(r *row) []any { return []any{&r.incarnation, &r.a, &r.b, &r.c} }), search, args...)
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
func (l deadLetters) Retried(ctx context.Context, tx store.Querier, unit string, r *Retry, text string) error {
	statement, args := l.remove, []any{unit, r.Position}
	if r.Err != nil {
		statement, args = l.keep, append(args, text)
	} else if r.Forget {
		statement = l.removeFirst
	}
	if err := l.write(ctx, tx, 1, statement, args...); err != nil {
		return fmt.Errorf("worker: write the dead letter of consumer %q at position %d: %w", unit, r.Position, err)
	}
	return nil
}
