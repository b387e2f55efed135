package e2e

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/pgxtx"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

// A nil argument is an error that names it, and no panic. So is an interface with a nil pointer.
func TestNilArgumentsAreErrors(t *testing.T) {
	t.Parallel()
	ctx, db, events := t.Context(), pgtest.New(t).DB, storepostgres.NewStore(storepostgres.NewStoreConfig(nil))
	do := func(tx pgx.Tx) error {
		return pgxtx.Do(tx, func(tx *sql.Tx) error { _, err := tx.Exec(`SELECT 1`); return err })
	}
	read := func(q store.Querier) error { _, err := events.ReadEvents(ctx, q, 0, 1); return err }
	open := func(q store.Querier, log store.SequenceNamer) error {
		_, err := frontier.OpenTransactions(ctx, q, log, false)
		return err
	}
	start := func(log store.Log, c consumer.Consumer) error {
		return worker.New(db, log, []consumer.Consumer{c}).Start(ctx)
	}
	enqueued := func(q jobs.Querier) error { _, err := workertest.Enqueued[nilArgs](ctx, q); return err }
	for name, c := range map[string]struct {
		call func() error
		text string
	}{
		"pgxtx.Do":               {func() error { return do(nil) }, "tx is nil"},
		"pgxtx.Do, a pointer":    {func() error { return do((*pgxpool.Tx)(nil)) }, "tx is nil"},
		"ReadEvents":             {func() error { return read(nil) }, "the querier is nil"},
		"ReadEvents, a pointer":  {func() error { return read((*sql.Tx)(nil)) }, "the querier is nil"},
		"migrations.Check":       {func() error { return migrations.Check(ctx, nil, nil) }, "the querier is nil"},
		"Check, a pointer":       {func() error { return migrations.CheckJobs(ctx, (*sql.Conn)(nil), nil) }, "the querier is nil"},
		"OpenTransactions":       {func() error { return open(nil, events) }, "q or log is nil"},
		"OpenTransactions's log": {func() error { return open(db, (*storepostgres.Store)(nil)) }, "q or log is nil"},
		"worker.New":             {func() error { return start(store.FromTxLog(nil), nil) }, "eventStore is nil"},
		"worker.New, a pointer":  {func() error { return start((*storepostgres.Store)(nil), (*scopedLedger)(nil)) }, "consumers[0]: is nil"},
		"jobs.Wait":              {func() error { _, err := jobs.Wait[int](ctx, nil, 1); return err }, "client is nil"},
		"workertest.Handle":      {func() error { return workertest.Handle(ctx, db, nil, nil, nil) }, "consumer is nil"},
		"workertest.Enqueued":    {func() error { return enqueued((*sql.DB)(nil)) }, "the querier is nil"},
	} {
		if err := c.call(); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}

type nilArgs struct{}

func (nilArgs) Kind() string { return "nil" }
