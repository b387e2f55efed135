package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// outage keeps everybody from a database.
type outage struct {
	t     *testing.T
	admin *pgx.Conn
	name  string
}

func newOutage(t *testing.T, d *pgtest.Database) *outage {
	t.Helper()
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := &outage{t: t, name: config.Database}
	config.Database = "postgres"
	if o.admin, err = pgx.ConnectConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.admin.Close(context.Background()) })
	return o
}

func (o *outage) admit(yes bool) {
	if _, err := o.admin.Exec(context.Background(), fmt.Sprintf(`ALTER DATABASE %s ALLOW_CONNECTIONS %v`, pgx.Identifier{o.name}.Sanitize(), yes)); err != nil {
		o.t.Errorf("admit connections: %v", err)
	}
}

// begin ends all sessions, but for one.
func (o *outage) begin(spared int) error {
	o.admit(false)
	_, err := o.admin.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1::text AND pid <> $2::int`, o.name, spared)
	return err
}

// A worker that is told to end while the database is away still sets the
// checkpoint back, if it can within a moment.
func TestRepairOutlastsAStop(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	if !reportsMarks(t, "pgx", d) {
		t.Skip("the server does not show the end of the transaction to the driver")
	}
	appendN(t, d.DB, "Order", "1", 6)
	o := newOutage(t, d)
	db, err := sql.Open("pgx", d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var stop func()
	began := make(chan struct{})
	c := ender(endings["COMMIT AND CHAIN"], func() error {
		defer close(began)
		stop()
		return errors.Join(o.begin(0), errRefused)
	})
	w := worker.New(db, newStore(), []consumer.Consumer{c}, quick()...)
	setLeave(w, time.Minute)
	stop = w.Stop
	r := runWorker(t, w)
	select {
	case <-began:
	case <-time.After(pgtest.Patience):
		t.Fatal("waited in vain for the handler")
	}
	select {
	case <-time.After(2 * time.Second): // the outage, longer than the first try
	case err := <-r.done:
		r.done <- err // it gave up at once
	}
	o.admit(true)
	expectation{checkpoint: 2, position: 3, says: "set back from 6 to 2"}.check(t, d, r.result(t))
}

// A worker that is told to end while the database is away, and for as long as it
// can wait, says of a batch that failed what is not known of it and how to find
// out. If the driver has shown that the handler left the transaction alone, there
// is nothing to say.
func TestStopInAnOutageSaysWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	const spareOwn = `SELECT pg_backend_pid()`
	for name, c := range map[string]struct {
		driver, statement string
		fate              string // empty: it is known
	}{
		"innocent, not shown":  {"lib/pq", `SELECT 1`, "aborted"},
		"committed, not shown": {"lib/pq", `COMMIT AND CHAIN`, "committed"},
		"innocent, cut off":    {"pgx", `SELECT 1`, "aborted"},
		"innocent, and shown":  {"pgx", spareOwn, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			if c.fate == "" && !reportsMarks(t, c.driver, d) {
				t.Skip("the server does not show the end of the transaction to the driver")
			}
			appendN(t, d.DB, "Order", "1", 6)
			o := newOutage(t, d)
			db := d.OpenMode(t, pgx.QueryExecModeExec)
			if c.driver == "lib/pq" {
				db = d.OpenPQ(t)
			}
			db.SetMaxIdleConns(-1) // a new connection for everything
			var stop func()
			consumers := []consumer.Consumer{&ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition != 3 {
					return nil
				}
				var own int
				if c.statement == spareOwn {
					if err := tx.QueryRowContext(ctx, spareOwn).Scan(&own); err != nil {
						return err
					}
				} else if _, err := tx.ExecContext(ctx, c.statement); err != nil {
					return err
				}
				stop()
				if err := o.begin(own); err != nil || own != 0 {
					return errors.Join(err, errRefused)
				}
				_, err := tx.ExecContext(ctx, c.statement) // whose answer nobody gets
				return err
			}}}
			var log lines
			w := worker.New(db, newStore(), consumers, append(quick(), worker.WithLogger(&log))...)
			setLeave(w, time.Second)
			stop = w.Stop
			r := runWorker(t, w)
			err := r.result(t)
			o.admit(true)
			if c.fate == "" {
				if err != nil {
					t.Errorf("Start: %v", err)
				}
				return
			}
			var ce *worker.ConsumerError
			if !errors.Is(err, worker.ErrOutcomeUnknown) || errors.Is(err, worker.ErrTransactionEnded) || !errors.As(err, &ce) || ce.Consumer != "c" ||
				!strings.Contains(err.Error(), "position 1 to 6, and reset the consumer (ops.Operator.Reset) if some are missing; otherwise nothing is lost") {
				t.Fatalf("Start: %v", err)
			}
			if last := statusOf(w, "c").LastError; last == nil || last.Error() != ce.Error() || len(log.with("batch outcome unknown")) == 0 {
				t.Errorf("the status says %v", last)
			}
			var fate string
			ask := regexp.MustCompile(`SELECT pg_xact_status\('\d+'\)`).FindString(err.Error())
			d.DB.SetMaxIdleConns(-1) // those from before the outage are dead
			if failed := d.DB.QueryRow(ask).Scan(&fate); failed != nil || fate != c.fate {
				t.Errorf("%q tells %q, %v; want %q, from: %v", ask, fate, failed, c.fate, err)
			}
		})
	}
}

// Somebody moves the consumer between its handler's commit and the worker's
// read of the row. The worker says that events are perhaps missing.
func TestHandlerThatCommitsAndIsOvertaken(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	c := ender(endings["COMMIT AND CHAIN"], func() error {
		d.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
		return errRefused
	})
	err := start(t, d.OpenPQ(t), []consumer.Consumer{c}).result(t)
	expectation{checkpoint: 6, says: "the batch was committed, and the consumer was moved since: compare what the handler wrote with the events from position 1 to 6"}.check(t, d, err)
}
