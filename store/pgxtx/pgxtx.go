// Package pgxtx is for applications that use pgx without database/sql. Do runs what takes a *sql.Tx,
// such as Append and Enqueue, in a transaction of pgx. In and Consumer give handlers the pgx.Tx of
// their batch. DB makes workers on a pgxpool.Pool.
package pgxtx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

var (
	errNil      = errors.New("pgxtx: tx is nil: begin a transaction of pgx first")
	errNoPool   = errors.New("pgxtx: pool is nil: make one with pgxpool.New")
	errPrepares = errors.New("pgxtx: prepare no statement: pgx prepares what it sends, if its mode says so")
	errEnds     = errors.New("pgxtx: the transaction is the caller's: commit it, or roll it back, as pgx.Tx, after Do")
)

// Tx is another name of sql.Tx, for programs that do not import database/sql.
type Tx = sql.Tx

// Do calls f with a *sql.Tx whose statements run in tx, and returns what f returns. It begins and
// ends no transaction: tx is the caller's before and after. If f commits or rolls back, nothing
// happens, and both that call and Do return an error. The *sql.Tx is of no use after f.
//
// The statements have the contexts of their own calls. As ever with pgx, a context that ends in a
// statement closes the connection of tx. tx must not be used by others during Do.
func Do(tx pgx.Tx, f func(tx *Tx) error) (err error) {
	if pgdriver.IsNil(tx) {
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

// DB returns a *sql.DB over pool, for what takes one: workers, clients, operators and migrations. It
// uses all connections of pool but one, which is left to the application. Several workers may share
// the *sql.DB; package worker says how many connections a worker needs. A worker refuses a
// pool of the default MaxConns 4, which pgxpool has on a machine of up to four CPUs. Close it when nobody uses
// it any more; that leaves pool open.
func DB(pool *pgxpool.Pool) *sql.DB {
	if pool == nil {
		return sql.OpenDB(refused{errNoPool})
	}
	db := stdlib.OpenDBFromPool(pool)
	db.SetMaxOpenConns(max(1, int(pool.Config().MaxConns)-1))
	return db
}

// refused is the connector of a *sql.DB that cannot be used.
type refused struct{ error }

func (r refused) Connect(context.Context) (driver.Conn, error) { return nil, r.error }

func (refused) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

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
