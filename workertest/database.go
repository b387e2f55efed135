package workertest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Database makes a database for one test: a copy of the database template. drop closes db, and
// drops the copy.
//
// If there is no template, Database makes one, and setup applies the migrations to it. Processes
// may do so at once: setup runs in one of them. The template stays for later runs, so name it after
// the state of the migrations, such as a hash of their texts. A process that is killed leaves its
// copies, which are named template_*.
//
// open opens a database of the server by name, also the database "postgres". The role needs
// CREATEDB. No session may be connected to the template:
//
//	open := func(name string) (*sql.DB, error) { return sql.Open("pgx", "postgres://localhost/"+name) }
//	db, drop, err := workertest.Database(t.Context(), "shop_v3", open, migrate)
func Database(ctx context.Context, template string, open func(name string) (*sql.DB, error), setup func(ctx context.Context, db *sql.DB) error) (db *sql.DB, drop func() error, err error) {
	name := template + "_" + strings.ToLower(rand.Text()[:12])
	switch {
	case template == "" || open == nil || setup == nil:
		err = errors.New("template is empty, or open or setup is nil")
	case len(name) > maxName:
		err = fmt.Errorf("the name has %d bytes, allowed are %d: shorten it", len(template), maxName-len(name)+len(template))
	default:
		err = onServer(open, func(admin *sql.DB) error {
			if err := ensureTemplate(ctx, admin, template, open, setup); err != nil {
				return err
			}
			_, err := admin.ExecContext(ctx, `CREATE DATABASE `+ident.Quote(name)+` TEMPLATE `+ident.Quote(template))
			return err
		})
	}
	if err == nil {
		db, err = open(name)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("workertest: copy the template %q: %w", template, err)
	}
	return db, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a test's context has ended
		defer cancel()
		return errors.Join(db.Close(), onServer(open, func(admin *sql.DB) error { return dropDatabase(ctx, admin, name) }))
	}, nil
}

// maxName is the maximum number of bytes of a name in PostgreSQL.
const maxName = 63

// onServer calls do with the database "postgres", from which others are created.
func onServer(open func(name string) (*sql.DB, error), do func(admin *sql.DB) error) error {
	admin, err := open("postgres")
	if err != nil {
		return err
	}
	return errors.Join(do(admin), admin.Close())
}

func dropDatabase(ctx context.Context, admin store.Querier, name string) error {
	_, err := admin.ExecContext(ctx, `DROP DATABASE IF EXISTS `+ident.Quote(name)+` WITH (FORCE)`)
	return err
}

// ensureTemplate makes the template unless it exists. It has its name only when it is complete.
func ensureTemplate(ctx context.Context, admin *sql.DB, name string, open func(string) (*sql.DB, error), setup func(context.Context, *sql.DB) error) error {
	lock, err := admin.Conn(ctx)
	if err != nil {
		return err
	}
	defer pgdriver.Discard(lock) // unlocks
	var exists bool
	if _, err := lock.ExecContext(ctx, `SELECT pg_advisory_lock(hashtextextended($1::text, 0))`, name); err != nil {
		return err
	}
	if err := lock.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1::text)`, name).Scan(&exists); err != nil || exists {
		return err
	}
	making := ident.Quote(name + "_making")
	// All statements are on this connection: admin may allow one only.
	if err := dropDatabase(ctx, lock, name+"_making"); err != nil {
		return err
	}
	if _, err := lock.ExecContext(ctx, `CREATE DATABASE `+making); err != nil {
		return err
	}
	db, err := open(name + "_making")
	if err != nil {
		return err
	}
	if err := errors.Join(setup(ctx, db), db.Close()); err != nil {
		return fmt.Errorf("setup: %w", err)
	}
	_, err = lock.ExecContext(ctx, `ALTER DATABASE `+making+` RENAME TO `+ident.Quote(name))
	return err
}
