package worker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
)

// A worker that is told to end while the database is away still sets the
// checkpoint back, if it can within a moment.
func TestRepairOutlastsAStop(t *testing.T) {
	d := newLog(t)
	if !reportsMarks(t, "pgx", d) {
		t.Skip("the server does not show the end of the transaction to the driver")
	}
	appendN(t, d.DB, "Order", "1", 6)
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	name := config.Database
	config.Database = "postgres"
	admin, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.Background()) }()
	admit := func(yes bool) {
		if _, err := admin.Exec(t.Context(), fmt.Sprintf(`ALTER DATABASE %s ALLOW_CONNECTIONS %v`, pgx.Identifier{name}.Sanitize(), yes)); err != nil {
			t.Errorf("admit connections: %v", err)
		}
	}
	db, err := sql.Open("pgx", d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var stop func()
	c := ender(endings["COMMIT AND CHAIN"], func() error {
		stop()
		admit(false)
		_, err := admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1::text`, name)
		return errors.Join(err, errRefused)
	})
	w := worker.New(db, newStore(), []consumer.Consumer{c}, quick()...)
	stop = w.Stop
	r := runWorker(t, w)
	select {
	case <-time.After(2 * time.Second): // the outage, longer than the first try
	case err := <-r.done:
		r.done <- err // it gave up at once
	}
	admit(true)
	expectation{checkpoint: 2, position: 3, says: "set back from 6 to 2"}.check(t, d, r.result(t))
}
