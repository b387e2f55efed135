package progress

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

	"github.com/pgfrontier/worker/internal/effects"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Checkpoints reads and moves the progress of consumers, for one worker.
type Checkpoints struct {
	worker      uuid.UUID
	idleTimeout string // of the server for a batch's transaction

	// SQL
	load, revisions, place, clean string
	scopes, selecting             string
	lockScope, rescope            string
	issued                        string
	arrived, known                string
	guard, guardAndAudit, pause   string
	incarnation                   string
	batch, endBatch               string
	repair, repaired, shorten     string
	compact                       string
	holderPrepared                string
	deadLetters                   deadLettersSQL
	rescale                       rescaleSQL
}

// Server is what a statement compares to know who answers it.
type Server struct {
	Incarnation string // an SQL expression, see package incarnation
	Sequence    string // behind the log's positions, qualified and quoted; empty: not known
}

// last is an SQL expression for the highest position that was issued. While ALTER SEQUENCE
// gives the sequence another file, it may be one from long ago, or NULL: reading a sequence
// does not lock it, and the old file may never have got the last ones.
func (s Server) last() string {
	if s.Sequence == "" {
		return strconv.FormatInt(math.MaxInt64, 10) + `::bigint`
	}
	return `(SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM ` + s.Sequence + `)`
}

// issued is a statement that reads the same under a lock, which waits for ALTER SEQUENCE.
// pg_sequence_last_value takes it, and is NULL before the first position. It is nextval's lock:
// in a transaction that stays open, it would hold back the frontier.
func (s Server) issued() string {
	if s.Sequence == "" {
		return `SELECT ` + s.last()
	}
	return `SELECT coalesce(pg_sequence_last_value(` + ident.Literal(s.Sequence) + `::regclass), ` + s.last() + `, 0)`
}

// written is an SQL expression for the time at which a checkpoint was written,
// the same in every session.
var written = pgdriver.Microseconds(`updated_at`) + `::text`

// seen is an SQL expression for the time at which an open range was first seen, as the JSON
// of a time.Time. In the zone of a session, the offset of an old time may have seconds.
var seen = `to_jsonb(` + pgdriver.Time(`first_seen_at`) + ` AT TIME ZONE 'UTC') #>> '{}' || 'Z'`

// New makes the statements of a worker. A batch's transaction that stays idle
// for batchTimeout is ended by the server.
func New(t tables.Tables, worker uuid.UUID, batchTimeout time.Duration, server Server) Checkpoints {
	letters := t.DeadLetters.SQL()
	guard, guardAndAudit := guard(t, worker, server)
	return Checkpoints{
		worker:         worker,
		idleTimeout:    strconv.FormatInt(max(batchTimeout.Milliseconds(), 1), 10),
		load:           load(t, server),
		issued:         server.issued(),
		revisions:      revisions(t),
		place:          place(t, server),
		scopes:         scopes(t),
		lockScope:      `SELECT FROM ` + t.Checkpoints.SQL() + ` WHERE consumer_name = $1::text AND split_at IS NULL FOR UPDATE`,
		rescope:        rescope(t, server),
		selecting:      selecting(t),
		incarnation:    `SELECT coalesce(` + server.Incarnation + `, '')`,
		guard:          guard,
		guardAndAudit:  guardAndAudit,
		clean:          cleaning(t),
		compact:        compaction(t),
		rescale:        newRescaleSQL(t),
		deadLetters:    newDeadLettersSQL(letters, server.Incarnation),
		pause:          pausing(t),
		arrived:        arrived(t, server),
		known:          known(t),
		repair:         repair(t, server),
		repaired:       repaired(t),
		shorten:        shorten(t, server),
		batch:          findBatch(t),
		endBatch:       endBatch(t),
		holderPrepared: holderPrepared(t),
	}
}

func load(t tables.Tables, server Server) string {
	return `
SELECT last_position, revision, ctid::text, xmin::text, ` + written + `, coalesce((
	SELECT jsonb_agg(jsonb_build_object('id', id, 'first', gap_position, 'last', gap_end, 'seen', ` + seen + `) ORDER BY gap_position)
	FROM ` + t.GapSkips.SQL() + ` WHERE consumer_name = $1::text AND state = 'open'), '[]')::text,
	` + lettersOf(t.DeadLetters.SQL()) + `,
	effects::text, ` + pgdriver.Time(`paused_at`) + `, coalesce(paused_by, ''), coalesce(paused_reason, ''), split_at IS NOT NULL, coalesce(scope::text, ''), coalesce(` + server.Incarnation + `, ''), coalesce(` + server.last() + `, 0)
FROM ` + t.Checkpoints.SQL() + ` WHERE consumer_name = $1::text`
}

func revisions(t tables.Tables) string {
	return `
SELECT consumer_name, revision FROM ` + t.Checkpoints.SQL() + `
WHERE consumer_name IN (SELECT jsonb_array_elements_text($1::jsonb))`
}

// place looks first: ON CONFLICT would wait for a batch in hand, and with it the
// start of a worker. The row is to outlast a crash also where commits are
// asynchronous: nobody would put it back.
func place(t tables.Tables, server Server) string {
	return `
WITH place AS MATERIALIZED (
	SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
	WHERE NOT EXISTS (SELECT FROM ` + t.Checkpoints.SQL() + ` WHERE consumer_name = $1::text)
	AND ($3::text = '' OR ` + server.Incarnation + ` = $3::text)
)
INSERT INTO ` + t.Checkpoints.SQL() + ` (consumer_name, last_position, scope, scope_since) SELECT $1::text, $2::bigint, $4::jsonb, $2::bigint FROM place
ON CONFLICT (consumer_name) DO NOTHING`
}

// NoCheckpointError reports that a consumer's row is gone. It is never taken
// for position 0: that would apply everything again.
type NoCheckpointError struct{ Unit string }

func (e NoCheckpointError) Error() string {
	return fmt.Sprintf("worker: consumer %q has no row in the checkpoints table any more: somebody deleted it, or retired the consumer (ops.Operator.Retire) before this worker had registered: put it back with the position to go on from, or restart the worker to begin as a new consumer does", e.Unit)
}

// Load reads a consumer's progress, all of it in one snapshot, and the
// incarnation that it stems from. A sequence that seems to be behind the position is looked at
// once more.
func (c Checkpoints) Load(ctx context.Context, q store.Querier, unit string) (*State, error) {
	var p State
	var open, had, selects string
	var pausedAt sql.NullTime
	var since Pause
	err := q.QueryRowContext(ctx, c.load, unit).Scan(&p.Position, &p.Revision, &p.Row, &p.Author, &p.Written, &open, &p.DeadLetters, &p.Letters, &p.Retry, &had, &pausedAt, &since.By, &since.Reason, &p.Split, &selects, &p.Token, &p.Last)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, NoCheckpointError{unit}
	case err != nil:
		return nil, fmt.Errorf("worker: load the checkpoint of consumer %q: %w", unit, err)
	}
	if p.Position > p.Last {
		if err := q.QueryRowContext(ctx, c.issued).Scan(&p.Last); err != nil {
			return nil, fmt.Errorf("worker: read which position was issued last, for consumer %q: %w", unit, err)
		}
	}
	if err := json.Unmarshal([]byte(open), &p.Open); err != nil {
		return nil, fmt.Errorf("worker: open ranges of consumer %q: %w", unit, err)
	}
	if p.Effects, err = effects.Parse(had); err != nil {
		return nil, fmt.Errorf("worker: effects of consumer %q: %w", unit, err)
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
	all, err := pgdriver.QueryAll(ctx, q, func(rows *sql.Rows) (r row, err error) {
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

// Incarnation reads which incarnation answers, empty if it has no token yet.
func (c Checkpoints) Incarnation(ctx context.Context, q store.Querier) (token string, err error) {
	if err = q.QueryRowContext(ctx, c.incarnation).Scan(&token); err != nil {
		return "", fmt.Errorf("worker: read the server's incarnation: %w", err)
	}
	return token, nil
}

// Place gives a consumer that has never run its first checkpoint; with a
// token, only in that incarnation of the server.
func (c Checkpoints) Place(ctx context.Context, q store.Querier, unit string, after int64, token string, s scope.Scope) error {
	if _, err := q.ExecContext(ctx, c.place, unit, after, token, s.String()); err != nil {
		return fmt.Errorf("worker: first checkpoint of consumer %q: %w", unit, err)
	}
	return nil
}
