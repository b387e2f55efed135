package consumer_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// database creates a database with one more table, for an Example.
func database(table string) (db *sql.DB, drop func()) {
	t, drop := pgtest.Example()
	d := pgtest.New(t)
	d.Exec(t, table)
	return d.DB, drop
}

// event returns an event of a new aggregate, worth so many cents.
func event(aggregateType string, cents int) store.Event {
	return store.Event{AggregateType: aggregateType, AggregateID: uuid.NewString(), EventType: aggregateType + "Made", Payload: fmt.Appendf(nil, `{"cents": %d}`, cents)}
}
