package worker

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// mending is what a repair writes.
type mending struct {
	to      int64    // the checkpoint
	through int64    // nothing above was handled
	marks   []mark   // in place of those that the batch wrote
	letters []letter // that the batch removed
}

// repair finds the progress as it would be if the batch had ended before the
// event at fault; if that is not known, as it was before the batch.
func (b *lastBatch) repair() mending {
	m := mending{}
	if len(b.fault) > 0 {
		m.through = b.fault[0].GlobalPosition - 1
	}
	p := b.page
	p.EndAt(m.through)
	if p.Void.First > m.through {
		p.Void = store.Missing{} // a sum that begins below stays: all of it is void
	}
	part, _ := p.cross(b.advance.under, b.open, math.MaxInt)
	m.to, m.marks = part.to, part.marks
	for _, o := range b.open {
		if slices.Contains(b.advance.gone, o.ID) && !slices.Contains(part.gone, o.ID) {
			m.marks = append(m.marks, mark{Range: o.Range, Missing: o.Count(), State: SkipOpen, Seen: &o.Seen})
		}
	}
	if r := b.page.retried; r != nil && r.err == nil {
		e := b.page.Events[0]
		m.letters = []letter{{aggregate: aggregate{e.AggregateType, e.AggregateID}, Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType, Error: ErrTransactionEnded.Error(), Attempts: r.attempts + 1}}
	}
	return m
}

// repair sets a checkpoint back, with all that the batch's transaction $4
// wrote beside it. An operator is told by the table of operations. It is to
// outlast a crash also where commits are asynchronous: nobody would repair it
// again.
func repair(t tables.Tables, server server) string {
	skips, letters := t.GapSkips.SQL(), t.DeadLetters.SQL()
	return `
WITH durable AS MATERIALIZED (
	SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
), repaired AS (
	UPDATE ` + t.Checkpoints.SQL() + `
	SET last_position = $6::bigint, revision = revision + 1, updated_at = clock_timestamp()
	WHERE ctid = $3::text::tid AND consumer_name = $1::text AND revision = $2::bigint AND xmin::text = $4::text
		AND ` + server.incarnation + ` = $5::text AND EXISTS (SELECT FROM durable)
	RETURNING revision, updated_at
), unmarked AS (
	DELETE FROM ` + skips + `
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND EXISTS (SELECT FROM repaired)
), marked AS (` + insertMarks(t, "repaired", "$7", "$6", "$8", "$9") + `
), removed AS (
	DELETE FROM ` + letters + `
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND global_position > $10::bigint AND EXISTS (SELECT FROM repaired)
), put_back AS (
	INSERT INTO ` + letters + ` (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts, retry_at)
	SELECT $1::text, l.position, l.type, l.id, l.event_id, l.event_type, l.error, l.attempts, clock_timestamp()
	FROM repaired, jsonb_to_recordset($11::jsonb) AS l(position bigint, type text, id text, event_id uuid, event_type text, error text, attempts int)
	ON CONFLICT (consumer_name, global_position) DO NOTHING
), recorded AS (
	INSERT INTO ` + t.Operations.SQL() + ` (consumer_name, operation, detail, operator, reason)
	SELECT $1::text, 'repair', $12::jsonb, $13::text, $14::text FROM repaired
)
SELECT revision FROM repaired`
}

// repaired finds a repair of what the transaction $3 left.
func repaired(t tables.Tables) string {
	return `
SELECT EXISTS (SELECT FROM ` + t.Operations.SQL() + `
	WHERE consumer_name = $1::text AND operation = 'repair' AND operator = $2::text AND detail->>'transaction' = $3::text AND detail->>'from' = $4::text)`
}

// repairDetail is what the table of operations keeps of a repair.
type repairDetail struct {
	From        int64  `json:"from"`
	To          int64  `json:"to"`
	Transaction string `json:"transaction"`
}

// Repair undoes what a batch that its handler committed has left undone. ok is
// false if the row is no longer as the batch left it.
func (c checkpoints) Repair(ctx context.Context, q store.Querier, unit string, b *lastBatch, m mending) (ok bool, err error) {
	detail, err1 := json.Marshal(repairDetail{From: b.advance.to, To: m.to, Transaction: b.after.author})
	marks, err2 := json.Marshal(append([]mark{}, m.marks...))
	letters, err3 := json.Marshal(append([]letter{}, m.letters...))
	if err := errtext.Join(err1, err2, err3); err != nil {
		return false, err
	}
	var revision int64
	err = q.QueryRowContext(ctx, c.repair, unit, b.after.revision, b.after.row, b.after.author, b.advance.token,
		m.to, c.worker.String(), b.advance.head, string(marks), m.through, string(letters),
		string(detail), c.operator(), "the handler committed "+b.twice()).Scan(&revision)
	if errors.Is(err, sql.ErrNoRows) {
		return c.Repaired(ctx, q, unit, b) // perhaps the answer to the last try was lost
	}
	if err != nil {
		return false, fmt.Errorf("worker: set back the checkpoint of consumer %q: %w", unit, err)
	}
	return true, nil
}

// Repaired reports whether this worker has repaired a batch already.
func (c checkpoints) Repaired(ctx context.Context, q store.Querier, unit string, b *lastBatch) (ok bool, err error) {
	err = q.QueryRowContext(ctx, c.repaired, unit, c.operator(), b.after.author, strconv.FormatInt(b.advance.to, 10)).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("worker: look for the repair of consumer %q: %w", unit, err)
	}
	return ok, nil
}

// operator is who this worker's repairs are signed by.
func (c checkpoints) operator() string { return "worker " + c.worker.String() }
