package pgxtx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/pgxtx"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type mail struct{ To string }

func (mail) Kind() string { return "mail" }

// newPool makes a database with all tables, and a pool of pgx.
func newPool(t *testing.T, mode pgx.QueryExecMode) (*pgtest.Database, *pgxpool.Pool) {
	t.Helper()
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	cfg, err := pgxpool.ParseConfig(d.InMode(mode).URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 10
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return d, pool
}

func count(t *testing.T, q store.Querier, query string) (n int) {
	t.Helper()
	if err := q.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%v, in\n%s", err, query)
	}
	return n
}

func order(id string) store.Event {
	return store.Event{AggregateType: "Order", AggregateID: id, EventType: "Placed", EventID: uuid.New(), Payload: []byte{0, 255, '\\'}, Metadata: []byte(`{"a": 1}`)}
}

// Events, jobs and runs of flows are there with the caller's own row, or with none of it.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	steps := flow.New[int]("order")
	flow.Add[flow.None](steps, "charge", func(int) mail { return mail{} })
	for _, mode := range pgtest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			d, pool := newPool(t, mode)
			d.Exec(t, `CREATE TABLE own (id text)`)
			events, mails, flows := storepostgres.NewStore(storepostgres.DefaultStoreConfig()), jobs.NewClient(d.DB), flow.NewClient(jobs.NewClient(d.DB))
			rolledBack := errors.New("rolled back")
			write := func(ctx context.Context, tx pgx.Tx, id string) error {
				if _, err := tx.Exec(ctx, `INSERT INTO own VALUES ($1)`, id); err != nil {
					return err
				}
				err := pgxtx.Do(tx, func(tx *sql.Tx) error {
					result, err := events.Append(ctx, tx, store.NoStream(), []store.Event{order(id), order(id)})
					if err != nil {
						return err
					}
					read, err := events.ReadEvents(ctx, tx, result.GlobalPositions[0]-1, 2)
					if err == nil && !reflect.DeepEqual(read, result.Events) {
						err = fmt.Errorf("read\n%+v\nappended\n%+v", read, result.Events)
					}
					if err != nil {
						return err
					}
					if _, err := mails.EnqueueMany(ctx, tx, []jobs.EnqueueParams{{Args: mail{"ann"}}, {Args: mail{"bob"}}}); err != nil {
						return err
					}
					_, err = steps.Start(ctx, flows, tx, 7)
					return err
				})
				if err != nil {
					return err
				}
				_, err = tx.Exec(ctx, `INSERT INTO own VALUES ($1)`, id)
				return err
			}
			for _, c := range []struct {
				name string
				in   func(ctx context.Context, f func(tx pgx.Tx) error) error
				all  int
			}{
				{"committed", func(ctx context.Context, f func(tx pgx.Tx) error) error { return pgx.BeginFunc(ctx, pool, f) }, 1},
				{"rolled back", func(ctx context.Context, f func(tx pgx.Tx) error) error {
					return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return errors.Join(f(tx), rolledBack) })
				}, 0},
				{"savepoint committed", func(ctx context.Context, f func(tx pgx.Tx) error) error {
					return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return pgx.BeginFunc(ctx, tx, f) })
				}, 1},
				{"savepoint rolled back", func(ctx context.Context, f func(tx pgx.Tx) error) error {
					return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
						err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return errors.Join(f(tx), rolledBack) })
						if errors.Is(err, rolledBack) {
							err = nil
						}
						return err
					})
				}, 0},
			} {
				d.Exec(t, `TRUNCATE own, events, aggregate_heads, jobs, jobs_flow_runs, jobs_flow_steps CASCADE`)
				err := c.in(t.Context(), func(tx pgx.Tx) error { return write(t.Context(), tx, c.name) })
				if err != nil && !errors.Is(err, rolledBack) || errors.Is(err, rolledBack) && err.Error() != rolledBack.Error() {
					t.Fatalf("%s: %v", c.name, err)
				}
				for query, want := range map[string]int{
					`SELECT count(*) FROM own`:            2,
					`SELECT count(*) FROM events`:         2,
					`SELECT count(*) FROM jobs`:           3,
					`SELECT count(*) FROM jobs_flow_runs`: 1,
				} {
					if n := count(t, d.DB, query); n != want*c.all {
						t.Errorf("%s: %s is %d, want %d", c.name, query, n, want*c.all)
					}
				}
			}
		})
	}
}

// Errors of the database and of the library arrive as they are, and the transaction stays the
// caller's.
func TestErrors(t *testing.T) {
	t.Parallel()
	d, pool := newPool(t, pgx.QueryExecModeCacheStatement)
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	ctx := t.Context()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		add := func(expected store.ExpectedVersion) error {
			return pgxtx.Do(tx, func(tx *sql.Tx) error {
				_, err := events.Append(ctx, tx, expected, []store.Event{order("1")})
				return err
			})
		}
		if err := add(store.NoStream()); err != nil {
			return err
		}
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := add(store.NoStream()); !errors.Is(err, store.ErrOptimisticConcurrency) {
			t.Errorf("a second append: %v", err)
		}
		if err := inner.Rollback(ctx); err != nil {
			return err
		}
		for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
			var told error
			if err := pgxtx.Do(tx, func(tx *sql.Tx) error { told = end(tx); return nil }); err == nil || told == nil {
				t.Errorf("a function ends the transaction: it is told %v, and Do says %v", told, err)
			}
		}
		if err := pgxtx.Do(tx, func(tx *sql.Tx) error { _, err := tx.PrepareContext(ctx, `SELECT 1`); return err }); err == nil {
			t.Error("a statement is prepared")
		}
		leaveOpen := func(tx *sql.Tx) error {
			rows, err := tx.QueryContext(ctx, `SELECT i FROM generate_series(1, 100000) AS i`)
			if err == nil && !rows.Next() {
				err = rows.Err()
			}
			return err
		}
		if err := pgxtx.Do(tx, leaveOpen); err != nil {
			t.Errorf("rows are left open: %v", err)
		}
		inner, err = tx.Begin(ctx)
		if err != nil {
			return err
		}
		for _, query := range []string{`SELECT 1/0`, `SELECT 1/(2-i) FROM generate_series(1, 2) AS i`, `no SQL`} {
			var pgErr *pgconn.PgError
			err := pgxtx.Do(inner, func(tx *sql.Tx) error {
				rows, err := tx.QueryContext(ctx, query)
				if err != nil {
					return err
				}
				defer rows.Close()
				for rows.Next() {
				}
				return rows.Err()
			})
			if !errors.As(err, &pgErr) {
				t.Errorf("%s: %v", query, err)
			}
			if err := inner.Rollback(ctx); err != nil {
				return err
			}
			if inner, err = tx.Begin(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, d.DB, `SELECT count(*) FROM events`); n != 1 {
		t.Errorf("%d events, want the first", n)
	}
	if err := pgxtx.Do(nil, nil); err == nil {
		t.Error("no transaction is no error")
	}
	var ended pgx.Tx
	_ = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { ended = tx; return nil })
	err = pgxtx.Do(ended, func(tx *sql.Tx) error { _, err := tx.Exec(`SELECT 1`); return err })
	if !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("in a transaction that has ended: %v", err)
	}
}

// The context of a statement ends it.
func TestContextEndsAStatement(t *testing.T) {
	t.Parallel()
	d, pool := newPool(t, pgx.QueryExecModeCacheStatement)
	holder, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if _, err := holder.ExecContext(t.Context(), `SELECT pg_advisory_lock(8)`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { pgtest.AwaitBlocked(t, d.DB); cancel() }()
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return pgxtx.Do(tx, func(tx *sql.Tx) error { _, err := tx.ExecContext(ctx, `SELECT pg_advisory_lock(8)`); return err })
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

// Values go and come as through the driver package of pgx.
func TestValuesAreThoseOfTheDriver(t *testing.T) {
	t.Parallel()
	types := []string{"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar(9)", "bytea", "json", "jsonb", "uuid", "date",
		"timestamp", "timestamptz", "time", "interval", "int8[]", "text[]", "oid", "name", "char(3)", "inet", "int4range", "xid"}
	for _, mode := range pgtest.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			d, pool := newPool(t, mode)
			plain := d.OpenMode(t, mode)
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background())
			rapid.Check(t, func(t *rapid.T) {
				of := rapid.SampledFrom(types).Draw(t, "type")
				text := rapid.OneOf(
					rapid.SampledFrom([]string{"0", "1", "-1", "t", "NaN", "Infinity", "-Infinity", "infinity", "2024-02-29 23:59:59.123456+05", "0044-03-15 BC", `\x00ff`, `{"a": 1}`, "{1,NULL}",
						"9223372036854775807", "1e-7", "0.1", "00000000-0000-0000-0000-000000000001", "a", "'", "ü", "", "10:20", "1 day", "::1", "[1,5)"}),
					rapid.Map(rapid.Int64(), func(n int64) string { return fmt.Sprint(n) }),
					rapid.Map(rapid.Float64(), func(f float64) string { return fmt.Sprint(f) }),
					rapid.Map(rapid.Int64Range(-1<<40, 1<<40), func(n int64) string { return time.Unix(n, 123456000).UTC().Format(time.RFC3339Nano) }),
				).Draw(t, "text")
				null := rapid.Bool().Draw(t, "null")
				query := fmt.Sprintf(`SELECT x, $2::bool, $3::bytea, $4::int8 FROM (VALUES (CASE WHEN $2::bool THEN NULL ELSE $1::text::%s END)) AS v (x) UNION ALL SELECT NULL, NULL, NULL, NULL`, of)
				args := []any{text, null, []byte(text), int64(len(text))}
				want, wantErr := readAll(plain, query, args)
				var got [][]any
				savepoint, err := tx.Begin(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				gotErr := pgxtx.Do(savepoint, func(tx *sql.Tx) (err error) { got, err = readAll(tx, query, args); return err })
				if err := savepoint.Rollback(context.Background()); err != nil {
					t.Fatal(err)
				}
				if (gotErr == nil) != (wantErr == nil) || wantErr == nil && !reflect.DeepEqual(fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", want)) {
					t.Fatalf("%s of type %s:\n%#v, %v\n%#v, %v by the driver package", text, of, got, gotErr, want, wantErr)
				}
			})
		})
	}
}

func readAll(q store.Querier, query string, args []any) (all [][]any, err error) {
	rows, err := q.QueryContext(context.Background(), query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		row := make([]any, 4)
		if err := rows.Scan(&row[0], &row[1], &row[2], &row[3]); err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, rows.Err()
}
