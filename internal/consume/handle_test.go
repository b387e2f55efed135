package consume

import (
	"context"
	"database/sql"
	"testing"

	"github.com/pgfrontier/worker/internal/runtime"

	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

type thrifty struct{}

func (thrifty) Name() string                                                       { return "thrifty" }
func (thrifty) Handle(context.Context, *sql.Tx, store.PersistedEvent) error        { return nil }
func (thrifty) HandleBatch(context.Context, *sql.Tx, []store.PersistedEvent) error { return nil }

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
	inTx := &transaction{Tx: tx, ctx: t.Context(), conn: conn}
	for name, bulk := range map[string]consumer.BatchConsumer{"each": nil, "in bulk": thrifty{}} {
		c := &consumerLoop{w: &Worker{observers: &runtime.Observers{}}, unit: &unit{name: "thrifty", spec: &spec{consumer: thrifty{}, bulk: bulk}}}
		allocations := func(events int) float64 {
			p := &work{Page: reader.Page{Events: make([]store.PersistedEvent, events)}}
			for i := range p.Events {
				p.Events[i].GlobalPosition = int64(i + 1)
			}
			return testing.AllocsPerRun(20, func() {
				if _, err := c.handleAll(t.Context(), inTx, p); err != nil {
					t.Fatal(err)
				}
			})
		}
		if few, many := allocations(10), allocations(10_000); many > few+1 {
			t.Errorf("%s: %v allocations for 10 events, %v for 10,000", name, few, many)
		}
	}
}
