package e2e

import (
	"context"
	"database/sql"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// A handler's commit outlasts the server: the checkpoint is set back also if the
// server restarts or crashes while the batch is in flight.
func TestHandlerThatCommitsBeforeTheServerRestarts(t *testing.T) {
	t.Parallel()
	for how, crash := range map[string]bool{"restart": false, "crash": true} {
		for _, driver := range []string{"pgx", "lib/pq"} {
			t.Run(driver+" "+how, func(t *testing.T) {
				if crash != (driver == "pgx") {
					tier.Long(t, "TestHandlerThatCommitsBeforeTheServerRestarts, with the other driver")
				}
				t.Parallel()
				server, pool := ownLog(t)
				d := &pgtest.Database{DB: pool, URL: server.URL("")}
				db := open(t, d, driver)
				appendN(t, d.DB, "Order", "1", 6)
				c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
					if event.GlobalPosition != 3 {
						return nil
					}
					if err := statements(`COMMIT`, `BEGIN`)(ctx, tx); err != nil {
						return err
					}
					if crash {
						if err := server.Kill(); err != nil {
							return err
						}
					}
					return server.Restart(context.WithoutCancel(ctx))
				}}
				want := expectation{says: "set back from 6 to 0"}
				if reportsMarks(t, driver, d) {
					want = expectation{checkpoint: 2, position: 3, says: "set back from 6 to 2"}
				}
				ended := start(t, db, []consumer.Consumer{c}).result(t)
				d.DB.SetMaxIdleConns(0) // those from before the restart are dead
				d.DB.SetMaxIdleConns(16)
				want.check(t, d, ended)
				expectRest(t, d, want.checkpoint)
			})
		}
	}
}

// positions are those of the events in the log. A crash skips some.
func positions(t *testing.T, db *sql.DB) []int64 {
	t.Helper()
	return positionsBy(t, db, `SELECT global_position FROM events ORDER BY 1`)
}
