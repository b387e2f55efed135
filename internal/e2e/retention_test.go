package e2e

import (
	"context"
	"database/sql"
	"strconv"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// A rolled-back append in each batch leaves a row of the audit;
// only some dozens are left of them, and they tell of every position.
func TestAuditOfRollbacksStaysSmall(t *testing.T) {
	t.Parallel()
	const rollbacks, bound = 300, 60
	d := newLog(t)
	d.Exec(t, `
DO $$ BEGIN
	FOR i IN 1..`+strconv.Itoa(rollbacks)+` LOOP
		PERFORM nextval('events_global_position_seq');
		INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, event_version, payload)
		SELECT 'Order', '1', 5 * i + n, gen_random_uuid(), 'Happened', 1, '' FROM generate_series(1, 5) AS n;
	END LOOP;
END $$`)
	skipAll := func(context.Context, *sql.Tx, store.PersistedEvent) error { return errNotWritten }
	consumers := []consumer.Consumer{&ledger{name: "all", before: skipAll}, &scopedLedger{ledger{name: "some", types: []string{"Order"}, before: skipAll}}}
	start(t, d.DB, consumers, worker.WithBatchSize(5))
	for _, name := range []string{"all", "some"} {
		await(t, name+" to be at the head", func() bool { return checkpoint(t, d.DB, name) == 6*rollbacks })
		var rows, missing int64
		await(t, "the audit of "+name+" to be small", func() bool {
			err := d.DB.QueryRow(`SELECT count(*), sum(missing) FROM consumer_gap_skips WHERE consumer_name = $1 AND state = 'void'`, name).Scan(&rows, &missing)
			return err == nil && rows <= bound
		})
		var wrong, overlapping int64
		if err := d.DB.QueryRow(`
SELECT count(*) FILTER (WHERE missing <> gap_end - gap_position + 1 - (SELECT count(*) FROM events WHERE global_position BETWEEN gap_position AND gap_end)),
	count(*) FILTER (WHERE gap_position <= before)
FROM (SELECT *, lag(gap_end) OVER (ORDER BY gap_position) AS before FROM consumer_gap_skips WHERE consumer_name = $1) AS s`, name).Scan(&wrong, &overlapping); err != nil {
			t.Fatal(err)
		}
		if missing != rollbacks || wrong > 0 || overlapping > 0 {
			t.Errorf("%s: the audit counts %d void positions, want %d; %d rows miscount those of their range, %d overlap", name, missing, rollbacks, wrong, overlapping)
		}
	}
}
