// Command moved is an application of the kind that people bring along when they
// come from another worker of this family. But for its import paths nothing in
// it was written for this one. SETUP selects one of its setups.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	_ "github.com/lib/pq"

	"github.com/pgfrontier/worker/store/consumer"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()

	address := os.Getenv("DATABASE_URL")
	db, err := sql.Open("postgres", address)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	if os.Getenv("SETUP") == "migrate" {
		if err := migrate(); err != nil {
			log.Fatal(err)
		}
		return
	}

	shutdown := make(chan struct{})
	var left atomic.Int32
	left.Store(5) // events for both consumers
	handled := func() {
		if left.Add(-1) == 0 {
			close(shutdown)
		}
	}
	app := &application{
		db:        db,
		address:   address,
		logger:    quiet{},
		shutdown:  shutdown,
		consumers: []consumer.Consumer{&Overview{handled: handled}, &Audit{handled: handled}},
	}
	w := setups[os.Getenv("SETUP")](app)
	if err := order(ctx, db, app.events); err != nil {
		log.Fatal(err)
	}
	fmt.Println("worker", w.ID())
	if err := w.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if ctx.Err() == nil {
		fmt.Println("stopped by itself")
		<-ctx.Done()
	}
}
