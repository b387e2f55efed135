// Package database gives an example an empty database. A program of yours opens its own:
//
//	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
package database

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/pgfrontier/worker/internal/lab/embedded"
)

// cleanUpLimit bounds what is done after the example.
const cleanUpLimit = time.Minute

// With calls run with an empty database, and drops it when run returns. The database is on
// the server that DATABASE_URL names. Without that, With starts a server, from the binaries
// on this machine or from downloaded ones, and ends it. What run returns because ctx has
// ended is no error.
func With(ctx context.Context, run func(ctx context.Context, db *sql.DB) error) (err error) {
	server, err := embedded.Start(ctx, embedded.Config{})
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer func() {
		ctx, cancel := cleaningUp(ctx)
		defer cancel()
		err = errors.Join(err, server.Stop(ctx))
	}()
	fmt.Fprintf(os.Stderr, "PostgreSQL %s, %s\n", server.Version(), server.Source())

	name := "example_" + strings.ToLower(rand.Text()[:12])
	if err := exec(ctx, server, "CREATE DATABASE "+name); err != nil {
		return unlessEnded(ctx, fmt.Errorf("create a database for the example (grant the role CREATEDB, or unset DATABASE_URL): %w", err))
	}
	defer func() {
		ctx, cancel := cleaningUp(ctx)
		defer cancel()
		err = errors.Join(err, exec(ctx, server, "DROP DATABASE "+name+" WITH (FORCE)"))
	}()
	db, err := sql.Open("pgx", server.URL(name))
	if err != nil {
		return err
	}
	db.SetMaxIdleConns(20) // database/sql would keep two
	return errors.Join(unlessEnded(ctx, run(ctx, db)), db.Close())
}

// exec runs a statement outside of the example's database.
func exec(ctx context.Context, server *embedded.Server, statement string) error {
	conn, err := pgx.Connect(ctx, server.URL(""))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

func cleaningUp(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanUpLimit)
}

// unlessEnded returns err, and nil if it only says that ctx has ended.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
