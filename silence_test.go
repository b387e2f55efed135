package worker_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/store/consumer"
)

// fallsInto are the statements of a batch, by what they contain.
var fallsInto = map[string]string{
	"BEGIN":  "begin isolation level read committed",
	"load":   "'seen', first_seen_at",
	"read":   "ORDER BY e.global_position",
	"guard":  "WITH guard AS",
	"COMMIT": "commit\x00",
}

// swallowers say when a connection dies: before the server has a statement, or
// before its answer arrives.
var swallowers = map[string]func(h *pgtest.Hole, text string){
	"before": (*pgtest.Hole).Swallow,
	"after":  (*pgtest.Hole).SwallowAnswer,
}

// eachSilence runs a test for every statement whose connection may die.
func eachSilence(t *testing.T, test func(t *testing.T, d *pgtest.Database, db *sql.DB, h *pgtest.Hole)) {
	for statement, text := range fallsInto {
		for when, swallow := range swallowers {
			t.Run(when+" "+statement, func(t *testing.T) {
				t.Parallel()
				d := newLog(t)
				db, h := d.OpenHole(t)
				swallow(h, text)
				appendN(t, d.DB, "Order", "1", 5)
				test(t, d, db, h)
			})
		}
	}
}

func awaitFallen(t *testing.T, h *pgtest.Hole) {
	t.Helper()
	await(t, "a connection to die", func() bool { return h.Fallen() > 0 })
}

// A connection that dies in silence holds its consumer up for a moment. What
// the server still holds for it is ended.
func TestConnectionThatDiesInSilence(t *testing.T) {
	eachSilence(t, func(t *testing.T, d *pgtest.Database, db *sql.DB, h *pgtest.Hole) {
		start(t, db, []consumer.Consumer{&ledger{name: "all"}}, worker.WithBatchTimeout(3*time.Second))
		awaitFallen(t, h)
		awaitHandled(t, d.DB, "all", upTo(5)...)
	})
}

// Stop does not wait for a connection that has died in silence.
func TestStopWhileAConnectionIsSilent(t *testing.T) {
	eachSilence(t, func(t *testing.T, _ *pgtest.Database, db *sql.DB, h *pgtest.Hole) {
		w := start(t, db, []consumer.Consumer{&ledger{name: "all"}}, worker.WithBatchTimeout(time.Hour), worker.WithShutdownTimeout(time.Second))
		awaitFallen(t, h)
		w.Stop()
		if err := w.result(t); err != nil {
			t.Errorf("Start returned %v", err)
		}
	})
}
