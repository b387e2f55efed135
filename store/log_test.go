package store_test

import (
	"context"
	"database/sql"
	"maps"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// txLog is a log whose read methods take a transaction. It records whether the last transaction
// could write.
type txLog struct {
	log      *storepostgres.Store
	readOnly string
}

func (l *txLog) ReadEvents(ctx context.Context, tx *sql.Tx, after int64, limit int) ([]store.PersistedEvent, error) {
	if err := tx.QueryRowContext(ctx, `SHOW transaction_read_only`).Scan(&l.readOnly); err != nil {
		return nil, err
	}
	return l.log.ReadEvents(ctx, tx, after, limit)
}

func (l *txLog) GetLatestGlobalPosition(ctx context.Context, tx *sql.Tx) (int64, error) {
	return l.log.GetLatestGlobalPosition(ctx, tx)
}

// namedTxLog is a txLog that names its sequence.
type namedTxLog struct{ *txLog }

func (l namedTxLog) PositionColumn() (table, column string) { return l.log.PositionColumn() }

func TestFromTxLog(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).DB
	db.SetMaxOpenConns(1) // a transaction left open blocks the next read
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	eventStore := storepostgres.NewStore(nil)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := eventStore.Append(ctx, tx, store.NoStream(), []store.Event{
		{AggregateType: "Order", AggregateID: "1", EventType: "Placed", EventID: uuid.New()},
	}); err != nil {
		t.Fatal(err)
	}

	inner := &txLog{log: eventStore}
	log := store.FromTxLog(inner)
	read := func(q store.Querier, readOnly string) {
		t.Helper()
		events, err := log.ReadEvents(ctx, q, 0, 10)
		if err != nil || len(events) != 1 || inner.readOnly != readOnly {
			t.Errorf("ReadEvents from a %T: %d events, %v, read-only %s", q, len(events), err, inner.readOnly)
		}
		if latest, err := log.GetLatestGlobalPosition(ctx, q); err != nil || latest != 1 {
			t.Errorf("GetLatestGlobalPosition from a %T: %d, %v", q, latest, err)
		}
		if _, err := log.ReadEvents(ctx, q, 0, 0); err == nil || !strings.Contains(err.Error(), "limit") {
			t.Errorf("an error from a %T: %v", q, err)
		}
	}
	read(tx, "off") // the caller's own
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	read(db, "on")
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	read(conn, "on")
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	var other struct{ store.Querier }
	if _, err := log.GetLatestGlobalPosition(ctx, other); err == nil || !strings.Contains(err.Error(), "*sql.DB") {
		t.Errorf("a querier that begins no transaction: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := log.GetLatestGlobalPosition(ctx, db); err == nil {
		t.Error("a closed pool: no error")
	}
}

func TestFromTxLogKeepsTheSequence(t *testing.T) {
	t.Parallel()
	inner := &txLog{log: storepostgres.NewStore(nil)}
	if _, ok := store.FromTxLog(inner).(store.SequenceNamer); ok {
		t.Error("a sequence is named, though the log names none")
	}
	n, ok := store.FromTxLog(namedTxLog{inner}).(store.SequenceNamer)
	if !ok {
		t.Fatal("the sequence's name is lost")
	}
	if table, column := n.PositionColumn(); table != `"events"` || column != "global_position" {
		t.Errorf("got %s, %s", table, column)
	}
}

// The zero value of ExpectedVersion is NoStream, the strictest version.
func TestExpectedVersion(t *testing.T) {
	t.Parallel()
	var zero store.ExpectedVersion
	for _, c := range []struct {
		v    store.ExpectedVersion
		is   string
		n    int64
		text string
	}{
		{zero, "no stream", 0, "NoStream"},
		{store.Any(), "any", 0, "Any"},
		{store.NoStream(), "no stream", 0, "NoStream"},
		{store.Exact(0), "no stream", 0, "NoStream"},
		{store.Exact(7), "exact", 7, "Exact(7)"},
		{store.Exact(-1), "exact", -1, "Exact(-1)"}, // refused by Append
	} {
		is := map[string]bool{"any": c.v.IsAny(), "no stream": c.v.IsNoStream(), "exact": c.v.IsExact()}
		want := map[string]bool{"any": false, "no stream": false, "exact": false}
		want[c.is] = true
		if !maps.Equal(is, want) || c.v.Value() != c.n || c.v.String() != c.text {
			t.Errorf("got %v, %d, %s, want %+v", is, c.v.Value(), c.v, c)
		}
	}
}

func TestVersionsOfEmptyValues(t *testing.T) {
	var result store.AppendResult
	var stream store.Stream
	if result.FromVersion() != 0 || result.ToVersion() != 0 || stream.Version() != 0 || stream.Len() != 0 || !stream.IsEmpty() {
		t.Errorf("%+v, %+v", result, stream)
	}
}
