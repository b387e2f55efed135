// Command wait-for is a shop over HTTP whose customers read their own writes: after an order,
// the page with the totals waits until a consumer has counted it.
//
//	go run ./examples/wait-for
//
// It prints what to type in another terminal.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/examples/internal/database"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := database.With(ctx, run); err != nil {
		log.Fatal(err)
	}
}

// Totals is the read model: how many orders there are, and what they are worth.
type Totals struct{}

func (Totals) Name() string { return "totals_v1" }

func (Totals) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `UPDATE totals SET orders = orders + 1, cents = cents + ($1::jsonb->>'cents')::int`, string(e.Payload))
	return err
}

// Shop is the application. Its worker may run Totals, or another process does.
type Shop struct {
	db     *sql.DB
	events store.EventStore
	worker *worker.Worker
}

// order appends an event, and leads to a page that has it.
func (s *Shop) order(w http.ResponseWriter, r *http.Request) {
	cents, err := strconv.ParseInt(r.FormValue("cents"), 10, 32)
	if err != nil || cents < 1 {
		http.Error(w, "cents must be a number above 0: curl -d cents=500", http.StatusBadRequest)
		return
	}
	position, err := s.append(r.Context(), cents)
	if err != nil {
		log.Print("append: ", err)
		http.Error(w, "the order was not placed: try again", http.StatusInternalServerError)
		return
	}
	http.Redirect(w, r, fmt.Sprint("/totals?after=", position), http.StatusSeeOther)
}

// totals shows the read model, as soon as it has the event at the position after.
func (s *Shop) totals(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	if after, err := strconv.ParseInt(r.FormValue("after"), 10, 64); err == nil {
		if err := s.worker.WaitFor(ctx, Totals{}.Name(), after); err != nil {
			log.Print(err) // says how far the consumer is
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the totals do not have the order yet: load this page again", http.StatusServiceUnavailable)
			return
		}
	}
	var orders, cents int
	if err := s.db.QueryRowContext(ctx, `SELECT orders, cents FROM totals`).Scan(&orders, &cents); err != nil {
		log.Print("totals: ", err)
		http.Error(w, "the totals cannot be read: try again", http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprintf(w, "%d orders, %d cents\n", orders, cents)
}

func (s *Shop) append(ctx context.Context, cents int64) (position int64, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	appended, err := s.events.Append(ctx, tx, store.NoStream(), []store.Event{{
		AggregateType: "Order", AggregateID: uuid.NewString(),
		EventType: "OrderPlaced", EventID: uuid.New(),
		Payload: fmt.Appendf(nil, `{"cents": %d}`, cents),
	}})
	if err != nil {
		return 0, err
	}
	return appended.GlobalPositions[0], tx.Commit()
}

func run(ctx context.Context, db *sql.DB) error {
	if err := migrations.Apply(ctx, db, nil); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE totals AS SELECT 0 AS orders, 0 AS cents`); err != nil {
		return err
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	w := worker.New(db, events, []consumer.Consumer{Totals{}},
		worker.WithDispatcherInterval(20*time.Millisecond)) // or WithDispatcherStrategy: notified, it takes less, and no polls

	shop := &Shop{db: db, events: events, worker: w}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", shop.order)
	mux.HandleFunc("GET /totals", shop.totals)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("curl -L -d cents=500 http://%s/orders\nCtrl-C ends everything.\n", listener.Addr())

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- w.Start(ctx) }()
	go func() { ended <- serve(ctx, listener, mux) }()
	err = <-ended // whichever ends first ends the other
	stop()
	return errors.Join(err, <-ended)
}

// serve serves HTTP until ctx ends. Requests that wait are answered first.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return server.Shutdown(ctx)
}
