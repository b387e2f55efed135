package coord_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var six = []string{"Analytics", "Billing", "Email", "Inventory", "Orders", "Shipping"}

// node is a coordinator that runs.
type node struct {
	*coord.Coordinator
	t    *testing.T
	id   uuid.UUID
	stop func() // ends Run and waits for it
}

func config(db *sql.DB, units ...string) coord.Config {
	return coord.Config{
		DB: db, ID: uuid.New(), Units: units,
		Nodes: ident.Table{Name: "worker_nodes"}, Assignments: ident.Table{Name: "consumer_assignments"},
		Checkpoints: ident.Table{Name: "consumer_checkpoints"}, Leader: ident.Table{Name: "worker_leader_election"},
		HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: 30 * time.Second, RebalanceInterval: 5 * time.Second,
	}
}

// start runs a coordinator until the test ends.
func start(t *testing.T, cfg coord.Config) *node {
	t.Helper()
	c := coord.New(cfg)
	if err := c.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	n := &node{Coordinator: c, t: t, id: cfg.ID}
	n.stop = func() {
		if ctx.Err() != nil {
			return
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(n.stop)
	return n
}

func (n *node) awaitAssigned(want ...string) {
	n.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		changed := n.Changed()
		if slices.Equal(n.Assigned(), want) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			n.t.Fatalf("worker %s runs %q, not %q; status %+v", n.id, n.Assigned(), want, n.Status())
		}
	}
}

func TestShare(t *testing.T) {
	d := pgtest.New(t)
	begin := time.Now()
	a := start(t, config(d.DB, six...))
	a.awaitAssigned(six...)
	t.Logf("alone after %v", time.Since(begin))
	begin = time.Now()
	b := start(t, config(d.DB, six...))
	if strings.Compare(a.id.String(), b.id.String()) > 0 {
		a, b = b, a
	}
	a.awaitAssigned("Analytics", "Email", "Orders")
	b.awaitAssigned("Billing", "Inventory", "Shipping")
	t.Logf("two after %v", time.Since(begin))
	begin = time.Now()
	a.stop()
	if err := a.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.awaitAssigned(six...)
	t.Logf("alone again after %v", time.Since(begin))
}
