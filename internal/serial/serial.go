// Package serial finds sequences that lie below ids which their tables have already, and
// raises them. A sequence falls behind by a switch to a logical replica, which has no
// sequences, by a dump that is restored in part, and by TRUNCATE ... RESTART IDENTITY. Ids
// then come again.
package serial

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Serial is a column of ids that a sequence draws.
type Serial struct {
	Table  ident.Table
	Column string
	also   []string // SQL of the highest id that another table has
}

// Jobs are the serials of the tables of jobs.
func Jobs(t tables.Jobs) []Serial {
	highest := func(expression string, t ident.Table) string { return `SELECT ` + expression + ` FROM ` + t.SQL() }
	return []Serial{
		{t.Operations, "id", nil}, // first: each raise is recorded there
		{t.Jobs, "id", []string{highest(`max(id)`, t.History), highest(`max(job_id)`, t.Attempts), highest(`max(job_id)`, t.FlowSteps)}},
		{t.Logs, "id", nil},
		{t.FlowRuns, "id", []string{highest(`max(id) >> 30`, t.FlowSteps)}},
	}
}

// Enqueued is the serial of jobs, as a worker may read it.
func Enqueued(t tables.Jobs) Serial {
	all := Jobs(t)[1]
	return Serial{all.Table, all.Column, all.also[:1]}
}

// Consumers are the serials of the tables of consumers. The frontier looks after that of
// the log.
func Consumers(t tables.Tables) []Serial {
	return []Serial{{t.Operations, "id", nil}, {t.GapSkips, "id", nil}}
}

// Behind is a sequence that lies below an id.
type Behind struct {
	Table    string `json:"table"`
	Sequence string `json:"sequence"`
	Last     int64  `json:"was"` // 0: it has drawn nothing
	Highest  int64  `json:"now"` // id that the tables have
}

func (b Behind) String() string {
	return fmt.Sprintf("sequence %s is at %d, and %s or its history has id %d", b.Sequence, b.Last, b.Table, b.Highest)
}

// find reads the ids in a snapshot that is older than the look at the sequence: what is
// drawn meanwhile makes no sequence lie below an id. Of a sequence that this role may not
// read, and of one that steps by more than one, as those of several primaries do, find
// knows nothing.
func (s Serial) find(ctx context.Context, on store.Querier) ([]Behind, error) {
	highest := []string{`(SELECT max(` + ident.Quote(s.Column) + `) FROM ` + s.Table.SQL() + `)`}
	for _, also := range s.also {
		highest = append(highest, `(`+also+`)`)
	}
	found, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (b Behind, err error) {
		b.Table = s.Table.String()
		return b, r.Scan(&b.Sequence, &b.Last, &b.Highest)
	}, `
SELECT name, last, highest FROM (
	SELECT s.seqrelid::regclass::text AS name, greatest(`+strings.Join(highest, ", ")+`) AS highest,
		CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT') THEN coalesce(pg_sequence_last_value(s.seqrelid), s.seqstart - 1) END AS last
	FROM pg_sequence AS s
	WHERE s.seqrelid = pg_get_serial_sequence($1::text, $2::text)::regclass AND s.seqincrement = 1
) AS s WHERE last < highest`, s.Table.SQL(), s.Column)
	if err != nil {
		return nil, fmt.Errorf("compare the sequence of %s with its ids: %w", s.Table, err)
	}
	return found, nil
}

// Find returns which sequences lie below an id.
func Find(ctx context.Context, on store.Querier, all ...Serial) (found []Behind, err error) {
	for _, s := range all {
		some, err := s.find(ctx, on)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// lockLimit bounds the wait for the lock of a table: whoever writes to the table waits
// behind it.
const lockLimit = "5s"

// Raise raises a sequence that lies below an id to the highest one. Until the end of tx it
// keeps others from drawing: whoever inserts has locked the table first. A rollback leaves
// the sequence raised. raised is nil if it lies below none.
func (s Serial) Raise(ctx context.Context, tx *sql.Tx) (raised *Behind, err error) {
	if _, err := tx.ExecContext(ctx, `SELECT set_config('lock_timeout', '`+lockLimit+`', true)`); err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `LOCK TABLE `+s.Table.SQL()+` IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return nil, fmt.Errorf("lock %s against those who write to it: %w", s.Table, remedy(err))
	}
	found, err := s.find(ctx, tx)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `SELECT setval($1::text::regclass, $2::bigint)`, found[0].Sequence, found[0].Highest); err != nil {
		return nil, fmt.Errorf("raise sequence %s: %w", found[0].Sequence, remedy(err))
	}
	return &found[0], nil
}

func remedy(err error) error {
	switch pgdriver.SQLState(err) {
	case pgdriver.InsufficientPrivilege:
		return fmt.Errorf("do it as the owner of the tables: %w", err)
	case pgdriver.LockNotAvailable:
		return fmt.Errorf("a transaction that writes to it has been open for more than %s: end it, and try again: %w", lockLimit, err)
	}
	return err
}
