package batch

import (
	"context"
	"database/sql"
	"testing"

	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

type thrifty struct{}

func (thrifty) Name() string                                                       { return "thrifty" }
func (thrifty) Handle(context.Context, *sql.Tx, store.PersistedEvent) error        { return nil }
func (thrifty) HandleBatch(context.Context, *sql.Tx, []store.PersistedEvent) error { return nil }

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestHandlingDoesNotAllocatePerEvent(t *testing.T) {
	g := progresstest.New(t)
	conn, err := g.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tx, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	inTx := NewTx(t.Context(), tx, conn, "")
	for name, bulk := range map[string]consumer.BatchConsumer{"each": nil, "in bulk": thrifty{}} {
		allocations := func(events int) float64 {
			b := &Batch{Handler: &Handler{Consumer: thrifty{}, Bulk: bulk}, Tx: inTx, Events: make([]store.PersistedEvent, events)}
			b.Prepare, b.Commit = func(context.Context) error { return nil }, func() error { return nil }
			for i := range b.Events {
				b.Events[i].GlobalPosition = int64(i + 1)
			}
			return testing.AllocsPerRun(20, func() {
				if r := b.Run(t.Context(), t.Context()); r.Kind != failure.None {
					t.Fatal(r.Err)
				}
			})
		}
		if few, many := allocations(10), allocations(10_000); many > few+1 {
			t.Errorf("%s: %v allocations for 10 events, %v for 10,000", name, few, many)
		}
	}
}
