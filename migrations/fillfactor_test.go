package migrations_test

import (
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// While vacuum can remove no row version, the checkpoints of many consumers rarely leave their
// pages. Each move to another page makes later reads of the index slower.
func TestCheckpointsStayOnTheirPages(t *testing.T) {
	t.Parallel()
	const consumers, rounds = 64, 20
	d := pgtest.New(t)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name) SELECT 'c' || n FROM generate_series(1, $1::int) AS n`, consumers)
	tx, err := d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	moved := 0
	for range rounds { // in one transaction, all versions stay
		var n int
		if err := tx.QueryRow(`
WITH before AS MATERIALIZED (SELECT consumer_name, (ctid::text::point)[0] AS page FROM consumer_checkpoints),
after AS (UPDATE consumer_checkpoints SET revision = revision + 1 RETURNING consumer_name, (ctid::text::point)[0] AS page)
SELECT count(*) FROM before JOIN after USING (consumer_name) WHERE before.page <> after.page`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		moved += n
	}
	if moved > consumers*rounds/5 {
		t.Errorf("%d of %d versions are on another page than the one before", moved, consumers*rounds)
	}
}
