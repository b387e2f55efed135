package worker

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// progress is how far a consumer has come, as its checkpoint row has it.
type progress struct {
	rowState
	position int64
	token    string // the incarnation that it was loaded in, empty if there was none
	last     int64  // the sequence's last value then; math.MaxInt64 if the log names none
	open     []openRange
	paused   *Pause  // nil: it may run
	letters  int     // aggregates that have dead letters, lettersCounted at most
	again    bool    // an operator wants some of them to be tried again
	retries  []retry // the next of these; none: look them up
}

// rowState tells one state of a checkpoint row from all others.
type rowState struct {
	revision int64  // counts every change of the consumer's progress
	row      string // where this version of it is: its ctid
	author   string // the transaction that wrote it: its xmin
	written  string // when: in microseconds. After a crash, the rest may come again from another
}

// moved is a checkpoint row as a guard leaves it.
type moved struct {
	rowState
	transaction string // its author with the epoch, as pg_xact_status takes it
}

// openRange are positions that the consumer passed while they were in doubt.
type openRange struct {
	store.Range
	ID   int64     `json:"id"`
	Seen time.Time `json:"seen"`
}

// mark is one row of the audit of skipped positions.
type mark struct {
	store.Range
	Missing int64      `json:"missing"` // how many of them
	State   SkipState  `json:"state"`
	Seen    *time.Time `json:"seen,omitempty"` // nil: now
}

// advance is what a batch does to its consumer's progress.
type advance struct {
	to    int64
	head  int64           // highest visible position, as far as this worker has seen
	token string          // the incarnation in which the frontier was computed
	under *frontier.Value // that it was decided under
	marks []mark
	// gone are the open ranges that marks replace.
	gone []int64
}

// checkpoints reads and moves the progress of consumers.
type checkpoints struct {
	worker      uuid.UUID
	idleTimeout string // of the server for a batch's transaction

	// SQL
	load, revisions, place, clean string
	arrived, known                string
	guard, guardAndAudit, pause   string
	incarnation                   string
	batch, endBatch, session      string
	repair, repaired, compact     string
	holderPrepared                string
	letters                       lettersSQL
}

// server is what a statement compares to know who answers it.
type server struct {
	incarnation string // an SQL expression, see package incarnation
	sequence    string // behind the log's positions, qualified and quoted; empty: not known
}

// last is an SQL expression for the highest position that was issued.
func (s server) last() string {
	if s.sequence == "" {
		return strconv.FormatInt(math.MaxInt64, 10) + `::bigint`
	}
	return `(SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM ` + s.sequence + `)`
}

// written is an SQL expression for the time at which a checkpoint was written,
// the same in every session.
const written = `(extract(epoch FROM updated_at) * 1000000)::bigint::text`

// insertMarks writes marks of consumer $1 into the audit if from, the part that
// changes the checkpoint, has a row. The others are parameters; marks is JSON.
//
// The time of that change is all times of a row, so that the times of a row of
// void positions are equal. Compaction knows it by that.
func insertMarks(t tables.Tables, from, worker, to, head, marks string) string {
	return `
	INSERT INTO ` + t.GapSkips.SQL() + ` (consumer_name, worker_id, gap_position, gap_end, missing, state,
		skip_to_position, highest_visible_position, first_seen_at, created_at, closed_at)
	SELECT $1::text, ` + worker + `::uuid, m.first, m.last, m.missing, m.state, ` + to + `::bigint, ` + head + `::bigint,
		coalesce(m.seen, ` + from + `.updated_at), ` + from + `.updated_at, CASE WHEN m.state <> 'open' THEN ` + from + `.updated_at END
	FROM ` + from + `, jsonb_to_recordset(` + marks + `::jsonb) AS m(first bigint, last bigint, missing bigint, state text, seen timestamptz)`
}

func newCheckpoints(t tables.Tables, worker uuid.UUID, batchTimeout time.Duration, server server) checkpoints {
	// The row is looked up where it was seen last. By its name, the search
	// would go through all versions of it that cannot be removed yet: beside a
	// transaction that stays open, each batch would be slower than the one
	// before. A row that has moved is not found, which means load again. The
	// position counts beside the revision, which another library's process does
	// not raise.
	guard := `
WITH guard AS (
	UPDATE ` + t.Checkpoints.SQL() + `
	SET last_position = $3::bigint, revision = revision + 1, updated_at = clock_timestamp()
	WHERE ctid = $7::text::tid
		AND consumer_name = $1::text AND revision = $2::bigint AND last_position <= $3::bigint AND last_position = $8::bigint
		AND ` + server.incarnation + ` = $4::text AND $3::bigint <= ` + server.last() + `
		AND EXISTS (SELECT FROM ` + t.Assignments.SQL() + ` WHERE consumer_name = $1::text AND worker_id = $5::uuid)
	RETURNING revision, ctid::text AS at, xmin::text AS author, ` + written + ` AS written, tableoid AS home, updated_at
)`
	// Once the row is ours, a connection that dies silently must not keep it:
	// the server ends a transaction that stays idle for as long as a batch
	// may take. And others can see whose batch holds it.
	result := `
SELECT revision, at, author, written, pg_current_xact_id()::text, set_config('idle_in_transaction_session_timeout', $6::text, true), ` + pgdriver.MarkTransaction + `, ` + signBatch(worker) + ` FROM guard`
	audit := `, gone AS (
	DELETE FROM ` + t.GapSkips.SQL() + `
	WHERE id IN (SELECT jsonb_array_elements_text($11::jsonb)::bigint) AND EXISTS (SELECT FROM guard)
), audit AS (` + insertMarks(t, "guard", "$5", "$3", "$9", "$10") + `
)`
	letters := t.DeadLetters.SQL()
	return checkpoints{
		worker:      worker,
		idleTimeout: strconv.FormatInt(max(batchTimeout.Milliseconds(), 1), 10),
		load: `
SELECT last_position, revision, ctid::text, xmin::text, ` + written + `, coalesce((
	SELECT jsonb_agg(jsonb_build_object('id', id, 'first', gap_position, 'last', gap_end, 'seen', first_seen_at) ORDER BY gap_position)
	FROM ` + t.GapSkips.SQL() + ` WHERE consumer_name = $1::text AND state = 'open'), '[]')::text,
	` + lettersOf(letters) + `,
	paused_at, coalesce(paused_by, ''), coalesce(paused_reason, ''), coalesce(` + server.incarnation + `, ''), ` + server.last() + `
FROM ` + t.Checkpoints.SQL() + ` WHERE consumer_name = $1::text`,
		incarnation: `SELECT coalesce(` + server.incarnation + `, '')`,
		revisions: `
SELECT consumer_name, revision FROM ` + t.Checkpoints.SQL() + `
WHERE consumer_name IN (SELECT jsonb_array_elements_text($1::jsonb))`,
		clean: `
DELETE FROM ` + t.GapSkips.SQL() + ` WHERE id IN (
	SELECT id FROM ` + t.GapSkips.SQL() + `
	WHERE state <> 'open' AND closed_at < clock_timestamp() - make_interval(secs => $1::numeric / 1000)
	ORDER BY closed_at LIMIT $2::bigint)`,
		// ON CONFLICT would wait for a batch in hand, and with it the start of
		// a worker: so it looks first. The row is to outlast a crash also where
		// commits are asynchronous: nobody would put it back.
		place: `
WITH place AS MATERIALIZED (
	SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
	WHERE NOT EXISTS (SELECT FROM ` + t.Checkpoints.SQL() + ` WHERE consumer_name = $1::text)
	AND ($3::text = '' OR ` + server.incarnation + ` = $3::text)
)
INSERT INTO ` + t.Checkpoints.SQL() + ` (consumer_name, last_position) SELECT $1::text, $2::bigint FROM place
ON CONFLICT (consumer_name) DO NOTHING`,
		guard:          guard + result,
		guardAndAudit:  guard + audit + result,
		letters:        newLettersSQL(letters, server.incarnation),
		repair:         repair(t, server),
		repaired:       repaired(t),
		holderPrepared: holderPrepared(t),
		compact:        compaction(t),
		batch:          findBatch(t),
		endBatch:       endBatch(t),
		session:        sessionState,
		pause: `
WITH paused AS (
	UPDATE ` + t.Checkpoints.SQL() + `
	SET paused_at = clock_timestamp(), paused_by = $3::text, paused_reason = $4::text, revision = revision + 1, updated_at = clock_timestamp()
	WHERE consumer_name = $1::text AND revision = $2::bigint AND paused_at IS NULL
		AND EXISTS (SELECT FROM ` + t.Assignments.SQL() + ` WHERE consumer_name = $1::text AND 'worker ' || worker_id = $3::text)
	RETURNING consumer_name
)
INSERT INTO ` + t.Operations.SQL() + ` (consumer_name, operation, detail, operator, reason)
SELECT consumer_name, 'pause', '{}', $3::text, $4::text FROM paused`,
		known: `SELECT EXISTS (SELECT FROM ` + t.Nodes.SQL() + ` WHERE $1::text = ANY (consumers))`,
		arrived: `
SELECT last_position, paused_at IS NOT NULL,
	EXISTS (SELECT FROM ` + t.GapSkips.SQL() + ` WHERE consumer_name = $1::text AND state = 'open' AND gap_position <= $2::bigint AND gap_end >= $2::bigint),
	EXISTS (SELECT FROM ` + letters + ` WHERE consumer_name = $1::text AND global_position = $2::bigint),
	coalesce(` + server.incarnation + `, '')
FROM ` + t.Checkpoints.SQL() + ` WHERE consumer_name = $1::text`,
	}
}

// errNoCheckpoint reports that a consumer's row is gone. It is never taken
// for position 0: that would apply everything again.
type errNoCheckpoint struct{ unit string }

func (e errNoCheckpoint) Error() string {
	return fmt.Sprintf("worker: consumer %q has no row in the checkpoints table any more: somebody deleted it, or retired the consumer (ops.Operator.Retire) before this worker had registered: put it back with the position to go on from, or restart the worker to begin as a new consumer does", e.unit)
}

// Load reads a consumer's progress, all of it in one snapshot, and the
// incarnation that it stems from.
func (c checkpoints) Load(ctx context.Context, q store.Querier, unit string) (*progress, error) {
	var p progress
	var open string
	var pausedAt sql.NullTime
	var pause Pause
	err := q.QueryRowContext(ctx, c.load, unit).Scan(&p.position, &p.revision, &p.row, &p.author, &p.written, &open, &p.letters, &p.again, &pausedAt, &pause.By, &pause.Reason, &p.token, &p.last)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, errNoCheckpoint{unit}
	case err != nil:
		return nil, fmt.Errorf("worker: load the checkpoint of consumer %q: %w", unit, err)
	}
	if err := json.Unmarshal([]byte(open), &p.open); err != nil {
		return nil, fmt.Errorf("worker: open ranges of consumer %q: %w", unit, err)
	}
	if pausedAt.Valid {
		pause.Since = pausedAt.Time
		p.paused = &pause
	}
	return &p, nil
}

// Revisions reads the revisions of consumers.
func (c checkpoints) Revisions(ctx context.Context, q store.Querier, units []string) (map[string]int64, error) {
	names, err := json.Marshal(units)
	if err != nil {
		return nil, err
	}
	type row struct {
		unit     string
		revision int64
	}
	all, err := queryAll(ctx, q, func(rows *sql.Rows) (r row, err error) {
		err = rows.Scan(&r.unit, &r.revision)
		return r, err
	}, c.revisions, string(names))
	if err != nil {
		return nil, fmt.Errorf("worker: revisions of %d consumers: %w", len(units), err)
	}
	revisions := map[string]int64{}
	for _, r := range all {
		revisions[r.unit] = r.revision
	}
	return revisions, nil
}

// queryAll returns what a query returns, each row as scan makes it.
func queryAll[T any](ctx context.Context, q store.Querier, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has told everything
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// Incarnation reads which incarnation answers, empty if it has no token yet.
func (c checkpoints) Incarnation(ctx context.Context, q store.Querier) (token string, err error) {
	if err = q.QueryRowContext(ctx, c.incarnation).Scan(&token); err != nil {
		return "", fmt.Errorf("worker: read the server's incarnation: %w", err)
	}
	return token, nil
}

// Place gives a consumer that has never run its first checkpoint; with a
// token, only in that incarnation of the server.
func (c checkpoints) Place(ctx context.Context, q store.Querier, unit string, after int64, token string) error {
	if _, err := q.ExecContext(ctx, c.place, unit, after, token); err != nil {
		return fmt.Errorf("worker: first checkpoint of consumer %q: %w", unit, err)
	}
	return nil
}

// Guard makes the batch exactly-once. It is the first statement of the
// batch's transaction: it moves the checkpoint if, and only if, nobody has
// changed the consumer's progress since from was loaded, the server is the
// incarnation in which the frontier was computed, the new position was issued,
// and the consumer is assigned to this worker. From then on the row's lock keeps every other
// worker from beginning a batch of this consumer. ok is false if it is not
// so: roll back and load again.
func (c checkpoints) Guard(ctx context.Context, tx *sql.Tx, unit string, from *progress, a advance) (m moved, ok bool, err error) {
	args := []any{unit, from.revision, a.to, a.token, c.worker.String(), c.idleTimeout, from.row, from.position}
	statement := c.guard
	if len(a.marks) > 0 || len(a.gone) > 0 {
		marks, err := json.Marshal(append([]mark{}, a.marks...))
		if err != nil {
			return m, false, err
		}
		gone, err := json.Marshal(append([]int64{}, a.gone...))
		if err != nil {
			return m, false, err
		}
		statement, args = c.guardAndAudit, append(args, a.head, string(marks), string(gone))
	}
	var timeout, mark string
	var signed bool
	err = tx.QueryRowContext(ctx, statement, args...).Scan(&m.revision, &m.row, &m.author, &m.written, &m.transaction, &timeout, &mark, &signed)
	if errors.Is(err, sql.ErrNoRows) {
		return m, false, nil
	}
	return m, err == nil, err
}
