// Package server has the database of a run, and the outages of its server.
package server

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
)

// Database is a database made for one run.
type Database struct {
	Name   string
	server *pgx.ConnConfig
	DB     *sql.DB // the harness's own connections
	Bounds harness.Bounds

	Version string
	Can     fault.Server          // whether it is the own one of the run, the instance knows
	Mortal  bool                  // the server goes away now and then, and comes back
	gone    atomic.Pointer[error] // why the server does not come back; nil: waits for the server go on
	before  []func() error        // what ends before the database is removed
}

// ParseURL parses the connection string of a server.
func ParseURL(url string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		// The parser's error quotes the string, and with it perhaps a password.
		return nil, errors.New("sim: the connection string cannot be parsed (not shown, it may hold a password)")
	}
	return config, nil
}

// Create makes a database on a server, with the tables of the library, and those
// that some statements make.
func Create(ctx context.Context, server *pgx.ConnConfig, b harness.Bounds, tables ...string) (*Database, error) {
	d := &Database{Name: fmt.Sprintf("sim_%d_%s", os.Getpid(), strings.ToLower(rand.Text()[:12])), server: server, Bounds: b, Can: fault.Server{Readable: server.TLSConfig == nil}}
	bounded, cancel := d.Bounded(ctx, WaitBound)
	defer cancel()
	if err := d.onServer(bounded, "CREATE DATABASE "+ident.Quote(d.Name)); err != nil {
		return nil, d.Unable(ctx, "creating the database", WaitBound, err)
	}
	d.DB = stdlib.OpenDB(*d.Config("harness"))
	d.DB.SetMaxOpenConns(10)
	d.Refresh()
	if err := d.setUp(bounded, append(tables, lifeTable)); err != nil {
		return nil, errors.Join(d.Unable(ctx, "setting up the database", WaitBound, err), d.Drop())
	}
	return d, nil
}

func (d *Database) setUp(ctx context.Context, tables []string) error {
	if err := migrations.Apply(ctx, d.DB, nil); err != nil {
		return err
	}
	for _, statements := range tables {
		if _, err := d.DB.ExecContext(ctx, statements); err != nil {
			return err
		}
	}
	return d.DB.QueryRowContext(ctx, `SELECT current_setting('server_version'), current_setting('max_prepared_transactions')::int > 0, current_setting('wal_level') <> 'minimal' AND current_setting('max_wal_senders')::int > 2, current_setting('server_version_num')::int >= 140000`).
		Scan(&d.Version, &d.Can.Prepares, &d.Can.Leads, &d.Can.Notices)
}

// Config is for connections to the database. pg_stat_activity shows their who.
func (d *Database) Config(who string) *pgx.ConnConfig {
	c := d.server.Copy()
	c.Database = d.Name
	c.RuntimeParams["application_name"] = "sim " + who
	if who == "harness" {
		c.RuntimeParams["statement_timeout"] = strconv.FormatInt(d.Bounds.Of(statementBound).Milliseconds(), 10)
		c.RuntimeParams["lock_timeout"] = strconv.FormatInt(d.Bounds.Of(lockBound).Milliseconds(), 10)
	}
	return c
}

// Refresh closes the idle connections, and keeps later ones.
func (d *Database) Refresh() {
	d.DB.SetMaxIdleConns(0)
	d.DB.SetMaxIdleConns(5)
}

// onServer runs a statement that belongs to no database of ours.
func (d *Database) onServer(ctx context.Context, statement string) error {
	conn, err := pgx.ConnectConfig(ctx, d.server)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

// beforeDrop registers what must end before the database is removed.
func (d *Database) beforeDrop(end func() error) { d.before = append(d.before, end) }

// Drop removes the database, also if a run was interrupted with transactions
// prepared.
func (d *Database) Drop() error {
	ctx, cancel := d.Bounded(context.Background(), WaitBound)
	defer cancel()
	step := "removing the database " + d.Name
	var ended error
	for _, end := range d.before {
		ended = errors.Join(ended, end())
	}
	if !d.Answers(ctx) {
		return errors.Join(ended, d.DB.Close(), harness.Failed(step, 0, errors.New("the server does not answer")))
	}
	err := d.RollBackPrepared(ctx, "'infinity'")
	err = errors.Join(err, ended, d.DB.Close(), d.onServer(ctx, "DROP DATABASE "+ident.Quote(d.Name)+" WITH (FORCE)"))
	return harness.Failed(step, d.Bounds.Of(WaitBound), err)
}

// RollBackPrepared rolls back the transactions that were prepared before a time of the server.
func (d *Database) RollBackPrepared(ctx context.Context, before string) error {
	gids, err := Column[string](ctx, d, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND prepared < `+before)
	for _, gid := range gids {
		_, undone := d.DB.ExecContext(ctx, "ROLLBACK PREPARED "+ident.Literal(gid))
		err = errors.Join(err, undone)
	}
	return err
}

// Room reports whether the server admits as many connections as a run needs.
func (d *Database) Room(ctx context.Context, needed int) error {
	var free int
	err := d.DB.QueryRowContext(ctx, `
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int - count(*)
FROM pg_stat_activity WHERE backend_type = 'client backend'`).Scan(&free)
	err = d.Unable(ctx, "counting the server's connections", statementBound, err)
	if err == nil && free < needed {
		err = errors.New("sim: the server has room for " + strconv.Itoa(free) + " more connections, the run may need " + strconv.Itoa(needed) +
			": raise its max_connections, or run with fewer -workers, -writers or -consumers")
	}
	return err
}
