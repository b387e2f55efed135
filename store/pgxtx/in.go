package pgxtx

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/delivery"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

var (
	errOutside = errors.New("pgxtx: no transaction: pass on the context that the handler was given")
	errWorkers = errors.New("pgxtx: the transaction belongs to the worker: remove the Commit or Rollback; tx.Begin sets a savepoint")
	errOpen    = errors.New("pgxtx: rows or results of the transaction are left open: close them before the handler returns")
)

// In calls f with the transaction that was passed to Handle of a consumer or to a handler of
// jobs.RegisterTx. It returns what f returns. Code of sqlc for pgx, COPY and batches run in tx.
// tx.Begin sets a savepoint. Commit and Rollback of tx itself return an error, and so does
// a use of tx after f has returned. Call LargeObjects in f, without open rows: else its methods
// panic. f must not use the *sql.Tx of the handler, nor end its goroutine, as t.Fatal of a test does. A
// panic of f goes on as an [observe.PanicError].
//
// In returns an error outside of a handler, if the pool of the worker has another driver than
// pgx/v5, and if f leaves rows open.
func In(ctx context.Context, f func(tx pgx.Tx) error) error {
	conn, back := delivery.Conn(ctx)
	defer back()
	if conn == nil {
		return errOutside
	}
	var panicked *observe.PanicError
	err := pgdriver.Raw(conn, func(of any) (err error) {
		c, ok := of.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("pgxtx: the connection is a %T: open the pool of the worker with DB, or with pgx/v5/stdlib", of)
		}
		s := &session{ctx: ctx, conn: c.Conn()}
		defer func() {
			s.returned = true
			if v := recover(); v != nil { // else Raw closes the connection, which waits for the end of its transaction
				panicked = runtime.Panicked(v)
			}
		}()
		err = f(&part{session: s})
		if err == nil && s.conn.PgConn().IsBusy() {
			err = errOpen
		}
		return err
	})
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// session is the connection of a handler's transaction during a call of In.
type session struct {
	ctx      context.Context
	conn     *pgx.Conn
	begun    int // number of savepoints so far
	returned bool
}

// part is the whole transaction of a session, or the part after a savepoint.
type part struct {
	*session
	number int // of the savepoint, 0: the whole
	ended  bool
}

func (p *part) closed() error {
	if p.ended || p.returned {
		return pgx.ErrTxClosed
	}
	return nil
}

func savepoint(number int) string { return fmt.Sprint("SAVEPOINT pgxtx_", number) }

func (p *part) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := p.closed(); err != nil {
		return nil, err
	}
	p.begun++
	inner := &part{session: p.session, number: p.begun}
	_, err := p.conn.Exec(ctx, savepoint(inner.number))
	return inner, err
}

func (p *part) Commit(ctx context.Context) error {
	return p.end(ctx, "RELEASE "+savepoint(p.number))
}

func (p *part) Rollback(ctx context.Context) error {
	return p.end(ctx, "ROLLBACK TO "+savepoint(p.number)+"; RELEASE "+savepoint(p.number))
}

func (p *part) end(ctx context.Context, query string) error {
	if err := p.closed(); err != nil {
		return err
	}
	if p.number == 0 {
		return errWorkers
	}
	p.ended = true
	_, err := p.conn.Exec(ctx, query)
	return err
}

func (p *part) Exec(ctx context.Context, query string, args ...any) (tag pgconn.CommandTag, err error) {
	if err = p.closed(); err != nil {
		return tag, err
	}
	return p.conn.Exec(ctx, query, args...)
}

func (p *part) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if err := p.closed(); err != nil {
		return noRows{err: err}, err
	}
	return p.conn.Query(ctx, query, args...)
}

func (p *part) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if err := p.closed(); err != nil {
		return noRows{err: err}
	}
	return p.conn.QueryRow(ctx, query, args...)
}

func (p *part) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	if err := p.closed(); err != nil {
		return 0, err
	}
	return p.conn.CopyFrom(ctx, table, columns, from)
}

func (p *part) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := p.closed(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return p.conn.SendBatch(ctx, b)
}

func (p *part) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if err := p.closed(); err != nil {
		return nil, err
	}
	return p.conn.Prepare(ctx, name, query)
}

// LargeObjects costs a round trip, since pgx makes LargeObjects only for transactions of its own. It
// cannot return an error: the methods of its zero value panic.
func (p *part) LargeObjects() pgx.LargeObjects {
	if p.closed() != nil || p.conn.PgConn().IsBusy() { // BeginTx would close a connection with open rows
		return pgx.LargeObjects{}
	}
	const nothing = ";" // it succeeds in an aborted transaction, too
	own, err := p.conn.BeginTx(p.ctx, pgx.TxOptions{BeginQuery: nothing})
	if err != nil {
		return pgx.LargeObjects{}
	}
	return own.LargeObjects()
}

func (p *part) Conn() *pgx.Conn { return p.conn }

// noRows is the result of a query that was not sent.
type noRows struct {
	pgx.Rows
	err error
}

func (r noRows) Close()            {}
func (r noRows) Err() error        { return r.err }
func (r noRows) Next() bool        { return false }
func (r noRows) Scan(...any) error { return r.err }
