package migrations_test

import (
	"context"
	"fmt"
	"log"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

// Apply creates the tables, and upgrades older ones. Each process may call Apply at its start.
func ExampleApply() {
	t, drop := pgtest.Example()
	defer drop()
	ctx, db := context.Background(), pgtest.Empty(t).DB // sql.Open("pgx", url), in a program

	config := migrations.DefaultConfig()
	config.EventsTable = "shop_events" // another name than the default
	for range 2 {                      // the second call changes nothing
		if err := migrations.Apply(ctx, db, &config); err != nil {
			log.Panic(err)
		}
	}
	fmt.Println("missing:", migrations.Check(ctx, db, &config))
	// Output: missing: <nil>
}
