package coord

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// Behind PgBouncer with transaction pooling, Register rejects session locks, and the lease
// works.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	for _, settings := range []map[string]string{{"default_pool_size": "1"}, {"default_pool_size": "3"}, {"server_round_robin": "1"}} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			db := d.Bounced(t, settings).DB
			if err := New(config(db, six...)).Register(context.Background()); !errors.Is(err, errTransactionPooling) {
				t.Errorf("Register: %v", err)
			}
			if n := scan[int](t, d.DB, `SELECT count(*) FROM worker_nodes`); n != 0 {
				t.Error("the worker registered nevertheless")
			}
			awaitShares(start(t, withLease(config(db, six...), true)), start(t, withLease(config(db, six...), true)))
		})
	}
}
