package pgdriver

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
)

// ErrNil reports a nil database, connection or transaction.
var ErrNil = errors.New("the querier is nil: pass a *sql.DB, *sql.Conn or *sql.Tx")

// IsNil reports whether v is a nil interface or holds a nil pointer, map, slice, func or chan.
func IsNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return r.IsNil()
	}
	return false
}

// queryer is a connection, a pool or a transaction that can read.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// QueryAll returns all rows of a query, each converted by scan.
func QueryAll[T any](ctx context.Context, q queryer, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	if IsNil(q) {
		return nil, ErrNil
	}
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has returned every error
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// WithoutJIT switches just-in-time compilation off until the end of a transaction. The planner
// may overestimate the cost of a statement that visits few rows of a large table. Compilation
// then takes seconds.
func WithoutJIT(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `SET LOCAL jit = off`)
	return err
}

// Beginner is a pool or a connection of a pool.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// InTx calls do in a transaction of its own, of read committed, and commits it.
func InTx(ctx context.Context, db Beginner, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// ReadAll is [QueryAll] on its own connection, without JIT.
func ReadAll[T any](ctx context.Context, p Pool, scan func(*sql.Rows) (T, error), query string, args ...any) (all []T, err error) {
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // back to the pool
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // the transaction has only read
	if err := WithoutJIT(ctx, tx); err != nil {
		return nil, err
	}
	return QueryAll(ctx, p.Plans.On(conn, tx), scan, query, args...)
}
