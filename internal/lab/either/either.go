// Package either has transactions of database/sql and of pgx.
package either

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/store/pgxtx"
)

// Tx is a transaction of an application. Its statements are sent through the interface that the
// application uses.
type Tx interface {
	Exec(ctx context.Context, query string, args ...any) error
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
	// do calls f with what the library takes.
	do(f func(tx *sql.Tx) error) error
	Commit() error
	Rollback() error
}

// Begin begins a transaction on conn: with native, one of pgx. Nobody else may use conn until the
// transaction has ended. A transaction that is prepared is rolled back, too, so that conn is free.
func Begin(ctx context.Context, conn *sql.Conn, native bool) (tx Tx, err error) {
	if !native {
		of, err := conn.BeginTx(ctx, nil)
		return sqlTx{of}, err
	}
	err = conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("either: the connection is a %T: open the pool with pgx/v5/stdlib", driverConn)
		}
		of, err := c.Conn().Begin(ctx)
		tx = pgxTx{ctx, of}
		return err
	})
	return tx, err
}

// Do calls f, which calls the library in tx.
func Do[T any](tx Tx, f func(tx *sql.Tx) (T, error)) (result T, err error) {
	err = tx.do(func(of *sql.Tx) (err error) { result, err = f(of); return err })
	return result, err
}

// Native reports whether tx is a transaction of pgx. It is false for nil.
func Native(tx Tx) bool {
	_, is := tx.(pgxTx)
	return is
}

type sqlTx struct{ *sql.Tx }

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) error {
	_, err := t.ExecContext(ctx, query, args...)
	return err
}

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return t.QueryRowContext(ctx, query, args...)
}

func (t sqlTx) do(f func(tx *sql.Tx) error) error { return f(t.Tx) }

// pgxTx ends in the context in which it began, as a transaction of database/sql does.
type pgxTx struct {
	ctx context.Context
	of  pgx.Tx
}

func (t pgxTx) Exec(ctx context.Context, query string, args ...any) error {
	_, err := t.of.Exec(ctx, query, args...)
	return err
}

func (t pgxTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return t.of.QueryRow(ctx, query, args...)
}

func (t pgxTx) do(f func(tx *sql.Tx) error) error { return pgxtx.Do(t.of, f) }
func (t pgxTx) Commit() error                     { return t.of.Commit(t.ctx) }
func (t pgxTx) Rollback() error                   { return t.of.Rollback(t.ctx) }
