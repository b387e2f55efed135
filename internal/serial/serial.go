// Package serial finds and raises sequences that are below ids in their tables. Such a sequence
// issues ids again. Causes are a switch to a logical replica, which has no sequences, a partial
// restore, and TRUNCATE ... RESTART IDENTITY.
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

// Serial is a column of ids that draws from a sequence.
type Serial struct {
	Table  ident.Table
	Column string
	also   []string // SQL for the highest ids in other tables
}

// Jobs returns the serials of the tables of jobs.
func Jobs(t tables.Jobs) []Serial {
	highest := func(expression string, t ident.Table) string { return `SELECT ` + expression + ` FROM ` + t.SQL() }
	return []Serial{
		{t.Operations, "id", nil}, // first, since each raise is recorded there
		{t.Jobs, "id", []string{highest(`max(id)`, t.History), highest(`max(job_id)`, t.Attempts), highest(`max(job_id)`, t.FlowSteps)}},
		{t.Logs, "id", nil},
		{t.FlowRuns, "id", []string{highest(`max(id) >> 30`, t.FlowSteps)}},
	}
}

// Enqueued returns the serial of jobs, with the tables that a worker may read.
func Enqueued(t tables.Jobs) Serial {
	all := Jobs(t)[1]
	return Serial{all.Table, all.Column, all.also[:1]}
}

// Consumers returns the serials of the tables of consumers. Package frontier checks the
// sequence of the log.
func Consumers(t tables.Tables) []Serial {
	return []Serial{{t.Operations, "id", nil}, {t.GapSkips, "id", nil}}
}

// Behind is a sequence that is below an id.
type Behind struct {
	Table    string `json:"table"`
	Sequence string `json:"sequence"`
	Last     int64  `json:"was"` // last id that it has issued; 0: none
	Highest  int64  `json:"now"` // highest id in the tables
}

func (b Behind) String() string {
	return fmt.Sprintf("sequence %s is at %d, and %s or its history has id %d", b.Sequence, b.Last, b.Table, b.Highest)
}

// find reads the ids in a snapshot that is older than its read of the sequence. So concurrently
// drawn ids are not mistaken for ids above the sequence. find omits a sequence that this role may
// not read. It also omits a sequence that steps by more than one, as those of several primaries do.
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

// Find returns the sequences that are below an id.
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

// lockLimit bounds the wait for the lock of a table, since writers to the table wait behind it.
const lockLimit = "5s"

// Raise raises a sequence that is below an id to the highest id. The lock keeps other
// transactions from drawing until the end of tx, since an INSERT locks the table first. A
// rollback does not undo the raise. raised is nil if the sequence is not below an id.
func (s Serial) Raise(ctx context.Context, tx *sql.Tx) (raised *Behind, err error) {
	if _, err := tx.ExecContext(ctx, `SELECT set_config('lock_timeout', '`+lockLimit+`', true)`); err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `LOCK TABLE `+s.Table.SQL()+` IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return nil, fmt.Errorf("lock %s against writers: %w", s.Table, remedy(err))
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
