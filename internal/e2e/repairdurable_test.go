package e2e

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
)

// A worker sets a checkpoint back once, and ends. Where commits are
// asynchronous, a crash of the server must not take that back: the handler's own
// commit may have been safe, and nobody would set the checkpoint back again.
func TestRepairIsSafeWhereCommitsAreAsynchronous(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	d.Exec(t, `CREATE TABLE repairs (synchronous TEXT)`)
	d.Exec(t, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO repairs VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`)
	d.Exec(t, `CREATE TRIGGER note AFTER UPDATE ON consumer_checkpoints FOR EACH ROW WHEN (NEW.last_position < OLD.last_position) EXECUTE FUNCTION note()`)
	appendN(t, d.DB, "Order", "1", 6)
	async, err := sql.Open("pgx", d.URL+"&synchronous_commit=off")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = async.Close() })
	w := start(t, async, []consumer.Consumer{ender(endings["tx.Commit"], sequels["returns nil"])})
	if err := w.result(t); !errors.Is(err, worker.ErrTransactionEnded) {
		t.Fatal(err)
	}
	var how string
	if err := d.DB.QueryRow(`SELECT string_agg(synchronous, ' ') FROM repairs`).Scan(&how); err != nil || how != "local" {
		t.Errorf("the checkpoint was set back with synchronous_commit %q, %v, want local", how, err)
	}
}
