package postgres_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/store"
)

// text draws all runes but NUL. It prefers runes that are special in arrays, in quoted strings
// or for a driver.
var text = rapid.StringOf(rapid.OneOf(
	rapid.SampledFrom([]rune(`"\',{}()$?:NULLx `+"\t\n\r\u2028\x01\x7f")),
	rapid.Rune().Filter(func(r rune) bool { return r != 0 })))

var notEmpty = text.Filter(func(s string) bool { return s != "" })

var nullText = rapid.Custom(func(t *rapid.T) store.NullString {
	if rapid.Bool().Draw(t, "null") {
		return store.NullString{}
	}
	return store.NullString{String: text.Draw(t, "text"), Valid: true}
})

var metadata = rapid.Custom(func(t *rapid.T) []byte {
	if rapid.Bool().Draw(t, "none") {
		return nil
	}
	m, err := json.Marshal(rapid.MapOf(text, text).Draw(t, "metadata"))
	if err != nil {
		t.Fatal(err)
	}
	return m
})

// With every driver, an event that passes Append's checks is stored unchanged.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		rapid.Check(t, func(t *rapid.T) {
			aggregateType, aggregateID := notEmpty.Draw(t, "type"), uuid.NewString()+text.Draw(t, "id")
			event := rapid.Custom(func(t *rapid.T) store.Event {
				return store.Event{
					AggregateType: aggregateType, AggregateID: aggregateID, EventType: notEmpty.Draw(t, "event type"),
					EventID: uuid.New(), EventVersion: rapid.IntRange(1, 1<<31-1).Draw(t, "version"),
					Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"), Metadata: metadata.Draw(t, "metadata"),
					TraceID: nullText.Draw(t, "trace"), CorrelationID: nullText.Draw(t, "correlation"), CausationID: nullText.Draw(t, "causation"),
					CreatedAt: time.UnixMicro(rapid.Int64Range(-62135596799999999, 253402300799999999).Draw(t, "created at")).UTC(),
				}
			})
			events := rapid.SliceOfN(event, 1, 5).Draw(t, "events")
			var result store.AppendResult
			inTx(t, db, func(tx *sql.Tx) {
				var err error
				if result, err = defaultStore.Append(context.Background(), tx, store.NoStream(), events); err != nil {
					t.Fatalf("%v", err)
				}
			})
			read, err := defaultStore.ReadAggregateStream(context.Background(), db, aggregateType, aggregateID, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(read.Events, result.Events) {
				t.Fatalf("read\n%+v\nappended\n%+v", read.Events, result.Events)
			}
			for i, e := range events {
				if !reflect.DeepEqual(input(t, read.Events[i]), normal(t, e)) {
					t.Fatalf("event %d: stored\n%+v\ngiven\n%+v", i, read.Events[i], e)
				}
			}
		})
	})
}

// input returns e as it was passed to Append.
func input(t *rapid.T, e store.PersistedEvent) store.Event {
	return normal(t, store.Event{
		AggregateType: e.AggregateType, AggregateID: e.AggregateID, EventType: e.EventType, EventID: e.EventID,
		EventVersion: e.EventVersion, Payload: e.Payload, Metadata: e.Metadata,
		TraceID: e.TraceID, CorrelationID: e.CorrelationID, CausationID: e.CausationID, CreatedAt: e.CreatedAt,
	})
}

// normal normalizes the spacing and order of JSON.
func normal(t *rapid.T, e store.Event) store.Event {
	if e.Metadata != nil {
		var v any
		err := json.Unmarshal(e.Metadata, &v)
		if err == nil {
			e.Metadata, err = json.Marshal(v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return e
}
