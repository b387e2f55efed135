package progress

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

//go:embed sql/*.sql
var files embed.FS

var texts = sqltext.Parse(files)

// Checkpoints reads and moves the progress of consumers, for one worker.
type Checkpoints struct {
	worker      uuid.UUID
	idleTimeout string // of the server, for a batch's transaction

	// SQL
	load, revisions, place string
	issued, incarnation    string
	guard, guardAndAudit   string
	pause, refused         string
	tables                 tables.Tables
	rescale                rescaleSQL
	deadLetters
	scopes
	arrivals
	holders
	repairs
	audit
}

// Server holds the SQL expressions by which a statement checks the server that answers.
type Server struct {
	Incarnation string // an SQL expression, see package incarnation
	Sequence    string // of the log's positions, qualified and quoted; empty: unknown
}

// last returns an SQL expression for the highest issued position. While ALTER SEQUENCE gives
// the sequence another file, the value may be outdated or NULL. Reading a sequence does not
// lock it, and the old file may never have got the latest positions.
func (s Server) last() string {
	if s.Sequence == "" {
		return strconv.FormatInt(math.MaxInt64, 10) + `::bigint`
	}
	return `(SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM ` + s.Sequence + `)`
}

// issued returns a statement that reads the highest issued position under a lock, which waits
// for ALTER SEQUENCE. pg_sequence_last_value takes the lock, and returns NULL before the first
// position. The lock is nextval's lock: in a transaction that stays open, it would hold back
// the frontier.
func (s Server) issued() string {
	if s.Sequence == "" {
		return `SELECT ` + s.last()
	}
	return `SELECT coalesce(pg_sequence_last_value(` + ident.Literal(s.Sequence) + `::regclass), ` + s.last() + `, 0)`
}

// New returns the statements of a worker. The server ends a batch's transaction that stays
// idle for batchTimeout.
func New(t tables.Tables, worker uuid.UUID, batchTimeout time.Duration, server Server) Checkpoints {
	values := sqltext.Names(t, sqltext.Values{
		"incarnation": server.Incarnation, "last": server.last(), "sign_batch": signBatch(worker), "mark_transaction": pgdriver.MarkTransaction,
		"marks_of_guard": insertMarks(t, "guard", "$5", "$3", "$15", "$16"), "marks_of_set_back": insertMarks(t, "set_back", "$7", "$6", "$8", "$9"),
		"receipts_of_guard": receipt.Insert(t, "guard", "$19"), "receipts_of_set_back": receipt.Insert(t, "set_back", "$13"),
		"end_receipt": receipt.End(t, `consumer_name = $1::text`), "end_receipts": receipt.End(t, `consumer_name = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))`),
		"retries": strconv.Itoa(retriesAtOnce), "most_counted": strconv.Itoa(DeadLettersCounted), "most_replays": strconv.Itoa(replaysCounted),
	})
	with := func(name string, more sqltext.Values) string {
		all := maps.Clone(values)
		maps.Copy(all, more)
		return texts.Statement(name, all)
	}
	r := func(name string) string { return with(name, nil) }
	return Checkpoints{
		worker:      worker,
		idleTimeout: strconv.FormatInt(max(batchTimeout.Milliseconds(), 1), 10),
		load:        r("load"), issued: server.issued(), revisions: r("revisions"), place: r("place"), pause: r("pause"), refused: r("refused"), tables: t,
		incarnation:   `SELECT coalesce(` + server.Incarnation + `, '')`,
		guard:         with("guard", sqltext.Values{"effects": "", "audit": "", "all_kept": "true"}),
		guardAndAudit: with("guard", sqltext.Values{"effects": r("audited"), "audit": r("audit"), "all_kept": r("kept")}),
		rescale:       newRescaleSQL(with, t),
		deadLetters:   newDeadLetters(with, t),
		scopes: scopes{worker, r("scopes"),
			`SELECT FROM ` + t.Checkpoints.SQL() + ` WHERE consumer_name = $1::text AND split_at IS NULL FOR UPDATE`,
			`SELECT set_config('lock_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '10s', true), pg_advisory_xact_lock(hashtextextended($1::text, hashtext(` + ident.Literal(t.Checkpoints.SQL()) + `)))`, r("rescope"), r("selecting")},
		arrivals: arrivals{r("arrived"), `SELECT EXISTS (SELECT FROM ` + t.Nodes.SQL() + ` WHERE $1::text = ANY (consumers) OR jsonb_path_exists(partitions, '$.*.scope.projection ? (@ == $name)', jsonb_build_object('name', $1::text)))`},
		holders:  holders{worker, r("holder_prepared"), findBatch(t), endBatch(t)},
		repairs:  newRepairs(worker, with),
		audit:    audit{r("compact"), r("clean")},
	}
}

// NoCheckpointError reports that a consumer's row is missing. A missing row is never read as
// position 0, which would apply every event again.
type NoCheckpointError struct{ Unit string }

func (e NoCheckpointError) Error() string {
	return fmt.Sprintf("worker: consumer %q has no row in the checkpoints table any more: it was deleted, or the consumer was retired (ops.Operator.Retire) before this worker had registered: insert the row with the position to continue from, or restart the worker to begin as a new consumer does", e.Unit)
}

// Load reads a consumer's progress in one snapshot, with the incarnation of the server. If the
// sequence's last value is below the position, Load reads the last value again under a lock.
func (c Checkpoints) Load(ctx context.Context, q store.Querier, unit string) (*State, error) {
	var p State
	var open, had, selects, received string
	var pausedAt sql.NullTime
	var since Pause
	err := q.QueryRowContext(ctx, c.load, unit).Scan(&p.Position, &p.Revision, &p.Row, &p.Author, &p.Written, &open, &p.DeadLetters, &p.HasDeadLetters, &p.Retry, &had, &pausedAt, &since.By, &since.Reason, &p.Split, &selects, &received, &p.Token, &p.Last)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, NoCheckpointError{unit}
	case err != nil:
		return nil, fmt.Errorf("worker: load the checkpoint of consumer %q: %w", unit, err)
	}
	if p.Position > p.Last {
		if err := q.QueryRowContext(ctx, c.issued).Scan(&p.Last); err != nil {
			return nil, fmt.Errorf("worker: read the highest issued position for consumer %q: %w", unit, err)
		}
	}
	if err := json.Unmarshal([]byte(open), &p.Open); err != nil {
		return nil, fmt.Errorf("worker: parse the open ranges of consumer %q: %w", unit, err)
	}
	if p.Effects, err = delivered.Parse(had); err != nil {
		return nil, fmt.Errorf("worker: parse the effects of consumer %q: %w", unit, err)
	}
	if p.Receipt, err = receipt.Parse(received); err != nil {
		return nil, fmt.Errorf("worker: parse the receipt of consumer %q: %w", unit, err)
	}
	if p.Recorded, err = recorded(unit, selects); err != nil {
		return nil, err
	}
	if pausedAt.Valid {
		since.Since = pausedAt.Time.UTC()
		p.Paused = &since
	}
	return &p, nil
}

// Revisions reads the revisions of consumers.
func (c Checkpoints) Revisions(ctx context.Context, q store.Querier, units []string) (map[string]int64, error) {
	names, err := json.Marshal(units)
	if err != nil {
		return nil, err
	}
	type row struct {
		unit     string
		revision int64
	}
	all, err := pgdriver.QueryAll(ctx, q, pgdriver.Columns(func(r *row) []any { return []any{&r.unit, &r.revision} }), c.revisions, string(names))
	if err != nil {
		return nil, fmt.Errorf("worker: read the revisions of %d consumers: %w", len(units), err)
	}
	revisions := map[string]int64{}
	for _, r := range all {
		revisions[r.unit] = r.revision
	}
	return revisions, nil
}

// Incarnation reads the incarnation that answers. It is empty if there is no token yet.
func (c Checkpoints) Incarnation(ctx context.Context, q store.Querier) (token string, err error) {
	if err = q.QueryRowContext(ctx, c.incarnation).Scan(&token); err != nil {
		return "", fmt.Errorf("worker: read the server's incarnation: %w", err)
	}
	return token, nil
}

// Place inserts the first checkpoint of a consumer that has never run. If token is not empty,
// Place does so only in that incarnation of the server. The consumer is a shadow if another version
// of its projection has the effects. versions are the other versions in the worker's code.
func (c Checkpoints) Place(ctx context.Context, db pgdriver.Pool, unit string, after int64, token string, s scope.Scope, versions []string) error {
	names, err := json.Marshal(append([]string{}, versions...))
	if err != nil {
		return err
	}
	insert := func(q store.Querier) error {
		_, err := q.ExecContext(ctx, c.place, unit, after, token, s.String(), delivered.Shadow().String(), string(names))
		return err
	}
	if s.Projection == "" {
		err = pgdriver.Repeated(func() error { return insert(db) })
	} else {
		err = inTx(ctx, db, func(tx *sql.Tx) error {
			if err := c.takeTurn(ctx, tx, s.Projection); err != nil {
				return err
			}
			return insert(tx)
		})
	}
	if err != nil {
		return fmt.Errorf("worker: place the first checkpoint of consumer %q: %w", unit, err)
	}
	return nil
}

// Pause pauses a consumer for all workers. Its progress must be unchanged since the load, and
// the consumer assigned to this worker.
func (c Checkpoints) Pause(ctx context.Context, q store.Querier, unit string, from *State, reason string) (ok bool, err error) {
	result, err := q.ExecContext(ctx, c.pause, unit, from.Revision, By(c.worker), reason)
	if err != nil {
		return false, fmt.Errorf("worker: pause consumer %q: %w", unit, err)
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
