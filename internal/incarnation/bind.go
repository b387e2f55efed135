package incarnation

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Bind binds a log to the tables that q's session finds now. It binds the log's reads to an
// incarnation: the value of the SQL expression of. A log that is no store.Binder, or only embeds
// one, is bound by a query after each read. The query uses the same connection. The query returns
// the incarnation. If the log's table is known, the query also checks that the table's name still
// leads to it.
func Bind(ctx context.Context, q store.Querier, log store.Log, of string) (store.BoundLog, error) {
	if b, ok := log.(store.Binder); ok && b.Binds(log) {
		return b.Bind(ctx, q, of)
	}
	named, ok := log.(store.SequenceNamer)
	if !ok {
		return asking{log, of}, nil
	}
	name, column := named.PositionColumn()
	var table string
	var oid int64
	err := q.QueryRowContext(ctx, `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.oid::bigint
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)`, name).Scan(&table, &oid)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("there is no table %s: create the table, or correct the name that the event store returns", name)
	}
	if err != nil {
		return nil, fmt.Errorf("find table %s: %w", name, err)
	}
	of = `CASE WHEN to_regclass(` + ident.Literal(name) + `)::oid::bigint = ` + strconv.FormatInt(oid, 10) + ` THEN ` + of + ` END`
	return askingNamed{asking{log, of}, table, column}, nil
}

// asking binds a log that does not prove incarnations. Its reads must use a connection or a
// transaction, because two servers could answer two statements on a pool.
type asking struct {
	store.Log
	of string
}

// askingNamed is an asking log that names the source of its positions.
type askingNamed struct {
	asking
	table, column string
}

func (a askingNamed) PositionColumn() (table, column string) { return a.table, a.column }

func (a asking) At(incarnation string) store.Log {
	r := read{a.Log, a.of, incarnation}
	scoped, isScoped := a.Log.(store.ScopedReader)
	ranges, isRanges := a.Log.(store.RangeReader)
	switch {
	case isScoped && isRanges:
		return struct {
			read
			scopedRead
			rangeRead
		}{r, scopedRead{r, scoped}, rangeRead{r, ranges}}
	case isScoped:
		return struct {
			read
			scopedRead
		}{r, scopedRead{r, scoped}}
	case isRanges:
		return struct {
			read
			rangeRead
		}{r, rangeRead{r, ranges}}
	}
	return r
}

// read is a log that reads the incarnation after each read.
type read struct {
	log  store.Log
	of   string
	want string
}

// prove returns the answer of a read, or store.ErrIncarnation if another incarnation than the
// wanted one answered.
func prove[T any](ctx context.Context, q store.Querier, r read, answer T, err error) (T, error) {
	var none T
	if err != nil {
		return none, err
	}
	var is string
	if err := q.QueryRowContext(ctx, `SELECT coalesce(`+r.of+`, '')`).Scan(&is); err != nil {
		return none, fmt.Errorf("read the server's incarnation: %w", err)
	}
	if is != r.want {
		return none, store.ErrIncarnation
	}
	return answer, nil
}

func (r read) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	events, err := r.log.ReadEvents(ctx, q, after, limit)
	return prove(ctx, q, r, events, err)
}

func (r read) GetLatestGlobalPosition(ctx context.Context, q store.Querier) (int64, error) {
	position, err := r.log.GetLatestGlobalPosition(ctx, q)
	return prove(ctx, q, r, position, err)
}

type scopedRead struct {
	read
	log store.ScopedReader
}

func (r scopedRead) ReadScoped(ctx context.Context, q store.Querier, s store.ScopedRange) (store.ScopedPage, error) {
	page, err := r.log.ReadScoped(ctx, q, s)
	return prove(ctx, q, r.read, page, err)
}

func (r scopedRead) CountMissing(ctx context.Context, q store.Querier, after, through int64) (store.Missing, error) {
	missing, err := r.log.CountMissing(ctx, q, after, through)
	return prove(ctx, q, r.read, missing, err)
}

type rangeRead struct {
	read
	log store.RangeReader
}

func (r rangeRead) ReadRanges(ctx context.Context, q store.Querier, ranges []store.Range, limit int) ([]store.PersistedEvent, error) {
	events, err := r.log.ReadRanges(ctx, q, ranges, limit)
	return prove(ctx, q, r.read, events, err)
}
