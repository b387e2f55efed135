package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestOtherTables(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	tables := migrations.DefaultConfig()
	tables.Names = store.Names{Schema: "Infra", Events: "select", AggregateHeads: "infra.order$2"}
	if err := migrations.Apply(t.Context(), d.DB, &tables); err != nil {
		t.Fatal(err)
	}
	s := storepostgres.NewStore(storepostgres.NewStoreConfig(
		storepostgres.WithNames(tables.Names)))

	for _, expected := range []store.ExpectedVersion{store.NoStream(), store.Exact(1), store.Any()} {
		mustAppend(t, s, d.DB, expected, newEvent("Order", "1"))
	}
	inTx(t, d.DB, func(tx *sql.Tx) {
		var conflict *storepostgres.ConflictError
		if _, err := s.Append(t.Context(), tx, store.Exact(1), newEvents(1, "Order", "1")); !errors.As(err, &conflict) || conflict.Actual != 3 {
			t.Errorf("a conflict: %v", err)
		}
	})
	events, err := s.ReadEvents(t.Context(), d.DB, 0, 10)
	if err != nil || len(events) != 3 {
		t.Errorf("ReadEvents: %d events, %v", len(events), err)
	}
	stream, err := s.ReadAggregateStream(t.Context(), d.DB, "Order", "1", nil, nil)
	if err != nil || stream.Len() != 3 {
		t.Errorf("ReadAggregateStream: %d events, %v", stream.Len(), err)
	}
	page, err := s.ReadScoped(t.Context(), d.DB, store.ScopedRange{UpTo: 3, Types: []string{"Order"}, Limit: 10})
	if err != nil || len(page.Events) != 3 {
		t.Errorf("ReadScoped: %d events, %v", len(page.Events), err)
	}
	if latest, err := s.GetLatestGlobalPosition(t.Context(), d.DB); err != nil || latest != 3 {
		t.Errorf("GetLatestGlobalPosition: %d, %v", latest, err)
	}
	table, column := s.PositionColumn()
	if table != `"infra"."select"` || column != "global_position" {
		t.Errorf("PositionColumn: %s, %s", table, column)
	}
	if n := count(t, d.DB, `SELECT count(pg_get_serial_sequence($1, $2))`, table, column); n != 1 {
		t.Errorf("no sequence is found behind %s of %s", column, table)
	}
}

// NewStore cannot fail, so every method returns the error of the config.
func TestBadConfigs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	for _, c := range []struct {
		option storepostgres.StoreOption
		want   []string
	}{
		{storepostgres.WithEventsTable(`events"; DROP TABLE events; --`), []string{"Names.Events", "DROP TABLE", "letters"}},
		{storepostgres.WithEventsTable("a.b.c"), []string{"Names.Events", "a.b.c"}},
		{storepostgres.WithEventsTable(strings.Repeat("x", 64)), []string{"Names.Events", "63"}},
		{storepostgres.WithAggregateHeadsTable("heads\x00"), []string{"Names.AggregateHeads"}},
		{storepostgres.WithAggregateHeadsTable("Events"), []string{"Names.Events", "Names.AggregateHeads", "events"}},
		{storepostgres.WithNotifyChannel("it's"), []string{"WithNotifyChannel", "it's"}},
	} {
		s := storepostgres.NewStore(storepostgres.NewStoreConfig(c.option))
		errs := map[string]error{"Validate": s.Validate()}
		inTx(t, db, func(tx *sql.Tx) {
			_, errs["Append"] = s.Append(t.Context(), tx, store.Any(), newEvents(1, "Order", "1"))
			_, errs["ReadEvents"] = s.ReadEvents(t.Context(), tx, 0, 1)
			_, errs["ReadScoped"] = s.ReadScoped(t.Context(), tx, store.ScopedRange{UpTo: 1, Types: []string{"Order"}, Limit: 1})
			_, errs["CountMissing"] = s.CountMissing(t.Context(), tx, 0, 1)
			_, errs["ReadAggregateStream"] = s.ReadAggregateStream(t.Context(), tx, "Order", "1", nil, nil)
			_, errs["GetLatestGlobalPosition"] = s.GetLatestGlobalPosition(t.Context(), tx)
			_, errs["ReadRanges"] = s.ReadRanges(t.Context(), tx, []store.Range{{First: 1, Last: 1}}, 1)
			_, errs["ReadAges"] = s.ReadAges(t.Context(), tx, []store.Place{{}})
			_, _, errs["ReadSized"] = s.ReadSized(t.Context(), tx, 0, 1, 1)
			_, errs["Bind"] = s.Bind(t.Context(), tx, "")
		})
		for method, err := range errs {
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v, want %q in it", method, err, want)
				}
			}
		}
	}
}

func TestGoodConfigs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	changed := storepostgres.DefaultStoreConfig()
	s := storepostgres.NewStore(changed)
	changed.Names.Events = "another"
	for name, s := range map[string]*storepostgres.Store{
		"nil":           storepostgres.NewStore(nil),
		"nil logger":    storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithLogger(nil))),
		"changed later": s,
		"zero":          storepostgres.NewStore(&storepostgres.StoreConfig{}),
	} {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		mustAppend(t, s, db, store.Any(), newEvent("Order", "1"))
	}
}

func TestNilQuerier(t *testing.T) {
	t.Parallel()
	if _, err := defaultStore.ReadEvents(t.Context(), nil, 0, 1); err == nil || !strings.Contains(err.Error(), "querier is nil") {
		t.Errorf("got %v", err)
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	var log recorder
	s := storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithLogger(&log)))
	mustAppend(t, s, db, store.NoStream(), newEvent("Order", "1"))
	inTx(t, db, func(tx *sql.Tx) {
		if _, err := s.Append(t.Context(), tx, store.NoStream(), newEvents(1, "Order", "1")); err == nil {
			t.Error("want a conflict")
		}
	})
	if want := []string{"events appended", "append refused"}; !slices.Equal(log.debug, want) {
		t.Errorf("logged %q, want %q", log.debug, want)
	}
}

type recorder struct {
	store.NoOpLogger
	debug []string
}

func (r *recorder) Debug(_ context.Context, msg string, _ ...any) { r.debug = append(r.debug, msg) }
