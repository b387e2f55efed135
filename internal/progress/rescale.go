package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Rescale is the transaction of a split or a merge. It replaces units of one consumer by other
// units that have the same keys, in one step.
//
// The consumer's own row, which is never deleted, is the mutex of the layout. A transaction
// that changes more than one unit locks this row first, and then the units in order of name. A
// batch locks only its own unit, so there are no deadlocks. All data for decisions are read
// after these locks, each by a statement of its own. A snapshot that is older than its lock
// does not show the last owner's commit.
//
// The revision of a slot grows with every change, whatever the name of its unit is. So no
// batch from before a split or a merge passes the guard, even if the name comes back.
type Rescale struct {
	tx       *sql.Tx
	c        *Checkpoints
	consumer string
}

type rescaleSQL struct {
	own, unit, parts, open, deadLetters string // read and lock
	split, inert, remove, merge         string
	record                              string
	changes                             ident.Table
}

// holdsRow is the idle time, in milliseconds, after which the server ends a rescale.
const holdsRow = "15000"

func newRescaleSQL(r func(name string, more sqltext.Values) string, t tables.Tables) rescaleSQL {
	checkpoints, assignments := t.Checkpoints.SQL(), t.Assignments.SQL()
	const (
		it   = `consumer_name = $1::text`
		them = `consumer_name = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))`
	)
	return rescaleSQL{
		changes: t.Changes,
		unit:    r("rescale_unit", nil), split: r("split", nil), merge: r("merge", nil),
		own:         `SELECT set_config('idle_in_transaction_session_timeout', $2::text, true) || set_config('lock_timeout', '0', true) FROM ` + checkpoints + ` WHERE ` + it + ` FOR UPDATE`,
		deadLetters: `SELECT global_position, aggregate_id, order_id FROM ` + t.DeadLetters.SQL() + ` WHERE ` + it,
		inert: `
UPDATE ` + checkpoints + ` SET split_at = clock_timestamp(), receipt = NULL, revision = revision + 1, updated_at = clock_timestamp(),
	paused_at = coalesce(paused_at, clock_timestamp()), paused_by = 'partitions', paused_reason = 'split'
WHERE ` + it,
		remove: `DELETE FROM ` + checkpoints + ` WHERE ` + it,
		parts: `
SELECT consumer_name, last_position, revision, paused_at IS NOT NULL, effects::text, coalesce(scope::text, ''), coalesce(scope_since, last_position), EXISTS (
	SELECT FROM ` + assignments + ` AS a WHERE a.consumer_name = c.consumer_name AND a.worker_id = $2::uuid AND a.partitions = $3::int)
FROM ` + checkpoints + ` AS c WHERE ` + them + ` AND split_at IS NULL ORDER BY consumer_name COLLATE "C" FOR UPDATE OF c`,
		open: `SELECT consumer_name, gap_position, gap_end, ` + pgdriver.Microseconds(`first_seen_at`) + ` FROM ` + t.GapSkips.SQL() + ` WHERE state = 'open' AND ` + them,
		record: `
INSERT INTO ` + t.Operations.SQL() + ` (consumer_name, operation, detail, operator, reason)
VALUES ($1::text, $2::text, $3::jsonb, $4::text, $5::text)`,
	}
}

// Rescale locks the layout of a consumer. ok is false if the consumer has no row, or if
// another incarnation of the server than token answers.
func (c *Checkpoints) Rescale(ctx context.Context, tx *sql.Tx, consumer, token string) (r *Rescale, ok bool, err error) {
	var limit string
	err = tx.QueryRowContext(ctx, c.rescale.own, consumer, holdsRow).Scan(&limit)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("lock the row of consumer %q: %w", consumer, err)
	}
	is, err := c.Incarnation(ctx, tx)
	return &Rescale{tx, c, consumer}, is == token, err
}

// KeyedDeadLetter is a dead letter that moves with the key of its event.
type KeyedDeadLetter struct {
	Position  int64
	Aggregate string // the aggregate's id
	Key       string // of the consumer's own key; without one: the aggregate's id
}

// LockUnit locks the unit that is to be split. ok is false in three cases: the unit was
// replaced, it is not assigned to this worker, or another number of partitions is wanted.
func (r *Rescale) LockUnit(ctx context.Context, unit string, partitions int) (position int64, deadLetters []KeyedDeadLetter, ok bool, err error) {
	err = r.tx.QueryRowContext(ctx, r.c.rescale.unit, unit, r.c.worker.String(), partitions).Scan(&position)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, nil, false, nil
	case err != nil:
		return 0, nil, false, fmt.Errorf("lock unit %q: %w", unit, err)
	}
	deadLetters, err = pgdriver.QueryAll(ctx, r.tx, pgdriver.Columns(func(l *KeyedDeadLetter) []any { return []any{&l.Position, &l.Aggregate, &l.Key} }), r.c.rescale.deadLetters, unit)
	return position, deadLetters, true, err
}

// Split replaces the locked unit by children. deadLetters maps the position of each dead
// letter to its child.
func (r *Rescale) Split(ctx context.Context, unit string, children []string, deadLetters map[int64]string, key string) error {
	type moved struct {
		Position int64  `json:"position"`
		Unit     string `json:"unit"`
	}
	all := []moved{}
	for position, child := range deadLetters {
		all = append(all, moved{position, child})
	}
	names, err1 := json.Marshal(children)
	moves, err2 := json.Marshal(all)
	if err := errtext.Join(err1, err2); err != nil {
		return err
	}
	if _, err := r.tx.ExecContext(ctx, r.c.rescale.split, unit, string(names), string(moves), key); err != nil {
		return fmt.Errorf("split unit %q: %w", unit, err)
	}
	last := r.c.rescale.remove
	if unit == r.consumer {
		last = r.c.rescale.inert
	}
	if _, err := r.tx.ExecContext(ctx, last, unit); err != nil {
		return fmt.Errorf("end unit %q: %w", unit, err)
	}
	return nil
}

// Part is a locked unit that is to be merged.
type Part struct {
	Unit     string
	Position int64
	Revision int64
	Paused   bool
	Effects  delivered.Borders
	Scope    string // as stored; empty: not recorded
	Since    int64  // the position from which on the scope is known
	Mine     bool   // assigned to this worker, with the wanted number of partitions
}

// LockParts locks units in order of name, and returns the units that exist.
func (r *Rescale) LockParts(ctx context.Context, units []string, partitions int) ([]Part, error) {
	names, err := json.Marshal(units)
	if err != nil {
		return nil, err
	}
	parts, err := pgdriver.QueryAll(ctx, r.tx, func(rows *sql.Rows) (p Part, err error) {
		var had string
		if err = rows.Scan(&p.Unit, &p.Position, &p.Revision, &p.Paused, &had, &p.Scope, &p.Since, &p.Mine); err == nil {
			p.Effects, err = delivered.Parse(had)
		}
		return p, err
	}, r.c.rescale.parts, string(names), r.c.worker.String(), partitions)
	if err != nil {
		return nil, fmt.Errorf("lock %d units of consumer %q: %w", len(units), r.consumer, err)
	}
	return parts, nil
}

// Watched is a range of positions that several units have passed while they were in doubt.
type Watched struct {
	store.Range
	Seen int64 `json:"seen"` // first seen, in microseconds since 1970
	by   int   // number of units
}

// Open returns the ranges that the locked units watch, in order. some are the ranges that not
// all units watch.
func (r *Rescale) Open(ctx context.Context, units []string) (all []Watched, some []store.Range, err error) {
	names, err := json.Marshal(units)
	if err != nil {
		return nil, nil, err
	}
	found, err := pgdriver.QueryAll(ctx, r.tx, func(rows *sql.Rows) (w Watched, err error) {
		var unit string
		err = rows.Scan(&unit, &w.First, &w.Last, &w.Seen)
		return w, err
	}, r.c.rescale.open, string(names))
	if err != nil {
		return nil, nil, fmt.Errorf("read the open ranges of %d units of consumer %q: %w", len(units), r.consumer, err)
	}
	all = unite(found)
	for _, w := range all {
		if w.by < len(units) {
			some = append(some, w.Range)
		}
	}
	return all, some, nil
}

// unite splits and joins ranges so that they are in order and do not overlap. The positions of
// a result lie in the same input ranges. The ranges of one unit do not overlap.
func unite(ranges []Watched) (all []Watched) {
	var borders []int64 // where a range begins, or the position after its end
	for _, w := range ranges {
		borders = append(borders, w.First, w.Last+1)
	}
	slices.Sort(borders)
	borders = slices.Compact(borders)
	slices.SortFunc(ranges, func(a, b Watched) int { return int(min(max(a.First-b.First, -1), 1)) })
	var under []Watched // the ranges that cover the border
	for i := 0; i+1 < len(borders); i++ {
		first, last := borders[i], borders[i+1]-1
		under = slices.DeleteFunc(under, func(w Watched) bool { return w.Last < first })
		for len(ranges) > 0 && ranges[0].First == first {
			under, ranges = append(under, ranges[0]), ranges[1:]
		}
		if len(under) == 0 {
			continue
		}
		w := Watched{Range: store.Range{First: first, Last: last}, Seen: under[0].Seen, by: len(under)}
		for _, u := range under {
			w.Seen = min(w.Seen, u.Seen)
		}
		if n := len(all); n > 0 && all[n-1].Last+1 == first && all[n-1].by == w.by && all[n-1].Seen == w.Seen {
			all[n-1].Last = last
		} else {
			all = append(all, w)
		}
	}
	return all
}

// Merge replaces locked parts, which all stand at one position, by one unit.
func (r *Rescale) Merge(ctx context.Context, parts []Part, into string, open []Watched, key string, partitions int) error {
	var units []string
	var revision, since int64
	var had []delivered.Part
	for _, p := range parts {
		units, since = append(units, p.Unit), max(since, p.Since)
		revision = max(revision, p.Revision)
		_, slots, _ := partition.Parse(p.Unit)
		had = append(had, delivered.Part{Slots: slots, Borders: p.Effects})
	}
	borders := delivered.Join(had, key)
	if into == r.consumer {
		key = ""
	}
	names, err1 := json.Marshal(units)
	watched, err2 := json.Marshal(append([]Watched{}, open...))
	if err := errtext.Join(err1, err2); err != nil {
		return err
	}
	_, err := r.tx.ExecContext(ctx, r.c.rescale.merge, string(names), into, parts[0].Position, revision+1, key, string(watched), r.c.worker.String(), partitions, borders.String(), parts[0].Scope, since)
	if err != nil {
		return fmt.Errorf("merge unit %q of %d: %w", into, len(parts), err)
	}
	return nil
}

// Rescaled is the record of a split or a merge.
type Rescaled struct {
	From       []string `json:"from"`
	To         []string `json:"to"`
	Position   int64    `json:"position"`
	Partitions int      `json:"partitions"` // the wanted number
}

// Record records the change for operators, notifies the other workers, and commits.
func (r *Rescale) Record(ctx context.Context, operation string, d Rescaled) error {
	detail, err := json.Marshal(d)
	if err != nil {
		return err
	}
	reason := fmt.Sprintf("%d partitions are wanted", d.Partitions)
	if _, err := r.tx.ExecContext(ctx, r.c.rescale.record, r.consumer, operation, string(detail), By(r.c.worker), reason); err != nil {
		return fmt.Errorf("record the %s: %w", operation, err)
	}
	if err := changes.Notify(ctx, r.tx, r.c.rescale.changes); err != nil {
		return err
	}
	return r.tx.Commit()
}
