// Package pgxtx runs what takes a *sql.Tx, such as Append and Enqueue, in a transaction of pgx.
package pgxtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store/consumer"
)

var (
	errOutside  = errors.New("pgxtx: no transaction: pass on the context that Handle was given")
	errNil      = errors.New("pgxtx: tx is nil: begin a transaction of pgx first")
	errPrepares = errors.New("pgxtx: prepare no statement: pgx prepares what it sends, if its mode says so")
	errEnds     = errors.New("pgxtx: the transaction is the caller's: commit it, or roll it back, as pgx.Tx, after Do")
)

// Do calls f with a *sql.Tx whose statements run in tx, and returns what f returns. It begins and
// ends no transaction: tx is the caller's before and after. If f commits or rolls back, nothing
// happens, and both that call and Do return an error. The *sql.Tx is of no use after f.
//
// The statements have the contexts of their own calls. As ever with pgx, a context that ends in a
// statement closes the connection of tx. tx must not be used by others during Do.
func Do(tx pgx.Tx, f func(tx *sql.Tx) error) (err error) {
	if tx == nil {
		return errNil
	}
	c := &conn{tx: tx}
	db := sql.OpenDB(c)
	defer db.Close()
	view, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		return err
	}
	defer func() {
		if c.returned.Store(true); view.Rollback() != nil { // f has ended it
			err = errors.Join(err, errEnds)
		}
	}()
	return f(view)
}

// Conn calls f with the connection of the transaction that was passed to Handle of a consumer, for
// COPY, batches and code of sqlc for pgx. Begin and end no transaction there, and do not use the
// *sql.Tx of Handle in f: f holds its connection. Conn returns an error outside of Handle, and if
// the pool of the worker has another driver than pgx/v5.
func Conn(ctx context.Context, f func(conn *pgx.Conn) error) error {
	conn, ok := consumer.Conn(ctx)
	if !ok {
		return errOutside
	}
	return pgdriver.Raw(conn, func(of any) error {
		c, ok := of.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("pgxtx: the connection is a %T: open the pool of the worker with pgx/v5/stdlib", of)
		}
		return f(c.Conn())
	})
}

// conn is the one connection of a *sql.DB. It has no transaction but tx.
type conn struct {
	tx       pgx.Tx
	returned atomic.Bool // f has
}

func (c *conn) Connect(context.Context) (driver.Conn, error) { return c, nil }

func (c *conn) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

func (c *conn) Close() error { return nil }

func (c *conn) Begin() (driver.Tx, error) { return c, nil }

func (c *conn) Commit() error { return c.Rollback() }

func (c *conn) Rollback() error {
	if !c.returned.Load() {
		return errEnds
	}
	return nil
}

// CheckNamedValue leaves all arguments to pgx.
func (c *conn) CheckNamedValue(*driver.NamedValue) error { return nil }

func (c *conn) Prepare(string) (driver.Stmt, error) { return nil, errPrepares }

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	tag, err := c.tx.Exec(ctx, query, values(args)...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	found, err := c.tx.Query(ctx, query, append([]any{formats}, values(args)...)...)
	if err != nil {
		return nil, err
	}
	r := &rows{Rows: found, types: c.tx.Conn().TypeMap()}
	r.ahead = r.Rows.Next() // before the first row, some modes of pgx know no columns
	if err := found.Err(); err != nil {
		return nil, err
	}
	return r, nil
}

func values(args []driver.NamedValue) []any {
	all := make([]any, len(args))
	for i, a := range args {
		all[i] = a.Value
	}
	return all
}
