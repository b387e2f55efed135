package runtime

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/refusal"
)

// PostgreSQL's error about a missing prepared statement gets the remedy, and no other error
// does.
func TestExplainNamesTheRemedy(t *testing.T) {
	d := pgtest.Empty(t)
	for name, db := range map[string]*sql.DB{"pgx": d.DB, "lib/pq": d.OpenPQ(t)} {
		for statement, want := range map[string]bool{
			`EXECUTE nothing`: true,
			`DO $$BEGIN EXECUTE 'PREPARE twice AS SELECT 1'; EXECUTE 'PREPARE twice AS SELECT 1'; END$$`: true,
			`SELECT 1 / 0`: false,
			`DO $$BEGIN RAISE SQLSTATE '08P01'; END$$`: false,
		} {
			_, err := db.Exec(statement)
			if err == nil {
				t.Fatalf("%s: %s succeeded", name, statement)
			}
			explained := Explain("worker", err)
			if got := errors.Is(explained, refusal.ErrPreparedStatements); got != want || !errors.Is(explained, err) {
				t.Errorf("%s: %s: explained: %v, want %v: %v", name, statement, got, want, explained)
			}
			if want && !strings.Contains(explained.Error(), "remove DISCARD ALL and DEALLOCATE ALL") {
				t.Errorf("%s: %s: the error does not name the other cause: %v", name, statement, explained)
			}
			if again := Explain("worker", explained); again != explained {
				t.Errorf("%s: explained twice: %v", name, again)
			}
		}
	}
	if err := Explain("worker", nil); err != nil {
		t.Errorf("nil became %v", err)
	}
}
