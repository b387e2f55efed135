package coord

import (
	"context"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// The leader and Dead detect a death by the free lock, even if the token is very old. A view
// replaces the token's table, because a view can return any xmin.
func TestDeathIsProvenWithAnOldToken(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	insertToken(t, d.DB)
	mustExec(t, d.DB, `ALTER TABLE consumer_checkpoints_token RENAME TO real_token`)
	mustExec(t, d.DB, `CREATE TABLE age AS SELECT 0::bigint AS transactions`)
	mustExec(t, d.DB, `
CREATE VIEW consumer_checkpoints_token AS
SELECT token, database, ((txid_snapshot_xmax(txid_current_snapshot()) - age.transactions) & 4294967295)::text::xid AS xmin
FROM real_token, age`)
	asker := New(config(d.DB, six...))
	if err := asker.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer asker.Leave(context.Background(), false)
	leader, dead := asker.registered, join(t, config(d.DB, six...))
	lead(t, leader)
	dead.Close()
	await(t, "the lock is free", func() bool { return !see(t, leader, dead.cfg.ID).Held })
	// Not closer to 2^32, because other tests draw transaction ids on this server.
	for _, age := range []int64{1 << 20, 1<<31 - 1, 1 << 31, 1<<31 + 1, 3 << 30, 1<<32 - 1<<20} {
		mustExec(t, d.DB, `UPDATE age SET transactions = $1::bigint`, age)
		if n := see(t, leader, dead.cfg.ID); !n.Proven {
			t.Errorf("the token is %d transactions old, and the heartbeat is not proven", age)
		}
		if ended, err := asker.alive.Dead(t.Context(), pgdriver.Pool{DB: d.DB}, dead.cfg.ID, 0); err != nil || !ended {
			t.Errorf("the token is %d transactions old, and dead is %v, %v", age, ended, err)
		}
	}
	mustExec(t, d.DB, `UPDATE age SET transactions = 0`)
	if n := see(t, leader, dead.cfg.ID); n.Proven {
		t.Error("a heartbeat from before the token is proven")
	}
}
