package consume

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// A session in which a statement of the worker fails leaves the pool, both from the loop
// and from read-ahead. Otherwise it would be taken again and again.
func TestSpoiledSessionLeavesThePool(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, createLedger)
	role := "stranger_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { d.Exec(t, `DROP ROLE `+role) })
	db := d.OpenPQ(t)
	h := newStepper(t, db, storepostgres.NewStore(nil), steppedConsumer{"all", nil, new(atomic.Bool)})
	appendOne(t, d.DB, "1")
	h.stepFrontierTo(t, 1)
	db.SetMaxIdleConns(1)
	for what, fails := range map[string]func() error{
		"a step": func() error {
			h.loop.forget()
			r, _ := h.loop.step(t.Context(), t.Context())
			return r.err
		},
		"reading ahead": func() error {
			h.loop.reader.Begin(t.Context(), 0, nil)
			_, err := h.loop.reader.Await()
			return err
		},
	} {
		if _, err := db.Exec(`SET ROLE ` + role); err != nil {
			t.Fatal(err)
		}
		if err := fails(); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v", what, err)
		}
		var is string
		if err := db.QueryRow(`SELECT current_user::text`).Scan(&is); err != nil || is == role {
			t.Errorf("%s leaves a session behind that runs as %s, %v", what, is, err)
		}
	}
}
