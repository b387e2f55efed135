package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Resolve returns the tables of a worker with their schema, as q's session finds them now.
func (t Tables) Resolve(ctx context.Context, q store.Querier) (Tables, error) {
	err := resolve(ctx, q, &t)
	return t, err
}

// Resolve returns the tables of jobs with their schema, as q's session finds them now.
func (t Jobs) Resolve(ctx context.Context, q store.Querier) (Jobs, error) {
	err := resolve(ctx, q, &t)
	return t, err
}

// resolve resolves the fields of all, a *Tables or a *Jobs.
func resolve(ctx context.Context, q store.Querier, all any) error {
	v := reflect.ValueOf(all).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("resolve") == "-" {
			continue
		}
		if err := find(ctx, q, v.Field(i).Addr().Interface().(*ident.Table)); err != nil {
			return err
		}
	}
	return nil
}

func find(ctx context.Context, q store.Querier, table *ident.Table) error {
	err := q.QueryRowContext(ctx, `
SELECT n.nspname::text, c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text) AND c.relpersistence <> 't'`, table.SQL()).Scan(&table.Schema, &table.Name)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("there is no table %s that is not a temporary one: apply the migrations, or give its name with the schema", table)
	case err != nil:
		return fmt.Errorf("find table %s: %w", table, err)
	}
	return nil
}
