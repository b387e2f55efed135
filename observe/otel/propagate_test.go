package otel_test

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/otel"
	"github.com/pgfrontier/worker/store"
)

var wakeup = observe.Woken{Source: observe.WakeupEvents}

// spanContext returns the n-th span of somebody else.
func spanContext(n byte, sampled bool, state string) trace.SpanContext {
	c := trace.SpanContextConfig{TraceID: trace.TraceID{1, 15: n}, SpanID: trace.SpanID{2, 7: n}, Remote: true}
	if sampled {
		c.TraceFlags = trace.FlagsSampled
	}
	c.TraceState, _ = trace.ParseTraceState(state)
	return trace.NewSpanContext(c)
}

func in(s trace.SpanContext) context.Context {
	return trace.ContextWithSpanContext(context.Background(), s)
}

// A span that is put into an event comes out of it, and whatever else the metadata
// has stays as it is.
func TestInjectKeepsMetadata(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SampledFrom([]string{"a", "Traceparent", "traceparent", "tracestate", "<&>", "ключ", ""})
		texts := rapid.SampledFrom([]string{`1`, `12345678901234567890.125`, `null`, `"<b>"`, `{"traceparent": "x"}`, `[1, {}]`, `"\u0000"`, `"x=1"`})
		fields := rapid.MapOfN(keys, texts, 0, 5).Draw(t, "fields")
		var b strings.Builder
		for key, text := range fields {
			name, _ := json.Marshal(key)
			if b.Len() > 0 {
				b.WriteString(", ")
			}
			b.WriteString(string(name) + ": " + text)
		}
		before := "{" + b.String() + "}"
		if len(fields) == 0 {
			before = rapid.SampledFrom([]string{"", " ", "null", "{}"}).Draw(t, "empty")
		}
		span := spanContext(rapid.Byte().Draw(t, "n"), rapid.Bool().Draw(t, "sampled"), rapid.SampledFrom([]string{"", "a=1,b=2"}).Draw(t, "state"))
		event := store.Event{Metadata: []byte(before)}
		if err := otel.Inject(in(span), &event); err != nil {
			t.Fatal(err)
		}
		if got := otel.Producer(store.PersistedEvent{Metadata: event.Metadata}); !got.Equal(span) {
			t.Fatalf("of %s comes %v, want %v", event.Metadata, got, span)
		}
		var old, now map[string]json.RawMessage
		if before != "" && before != " " {
			_ = json.Unmarshal([]byte(before), &old)
		}
		if err := json.Unmarshal(event.Metadata, &now); err != nil {
			t.Fatal(err)
		}
		for _, all := range []map[string]json.RawMessage{old, now} {
			delete(all, "traceparent")
			delete(all, "tracestate")
		}
		if len(old) != len(now) {
			t.Fatalf("%s became %s", before, event.Metadata)
		}
		for key := range old {
			if was, is := decoded(t, old[key]), decoded(t, now[key]); !reflect.DeepEqual(was, is) {
				t.Fatalf("%q: %v became %v", key, was, is)
			}
		}
	})
}

// decoded keeps numbers as they are written.
func decoded(t *rapid.T, text json.RawMessage) (v any) {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// Metadata that is no object is refused, and stays as it is; also where there is nothing to
// put into it.
func TestInjectRefuses(t *testing.T) {
	for _, ctx := range []context.Context{context.Background(), in(spanContext(1, true, ""))} {
		for _, metadata := range []string{`[]`, `1`, `"a"`, `{`, `{} {}`, `true`} {
			event := store.Event{EventType: "Placed", Metadata: []byte(metadata)}
			err := otel.Inject(ctx, &event)
			if err == nil || !strings.Contains(err.Error(), "JSON object") || !strings.Contains(err.Error(), "Placed") || string(event.Metadata) != metadata {
				t.Errorf("%s became %s: %v", metadata, event.Metadata, err)
			}
		}
	}
	if err := otel.Inject(context.Background(), nil); err == nil {
		t.Error("a nil event is taken")
	}
	event := store.Event{}
	if err := otel.Inject(context.Background(), &event); err != nil || event.Metadata != nil {
		t.Errorf("without a span: %s, %v", event.Metadata, err)
	}
}

// Metadata that others have written names no producer, and does no harm.
func TestProducerOfOddMetadata(t *testing.T) {
	for _, metadata := range []string{"", "null", "[]", "{", `{"traceparent": 1}`, `{"traceparent": null}`, `{"traceparent": "00-x"}`,
		`{"traceparent": "00-00000000000000000000000000000000-0000000000000000-01"}`, `{"trace": "traceparent"}`} {
		if s := otel.Producer(store.PersistedEvent{Metadata: []byte(metadata)}); s.IsValid() {
			t.Errorf("%s: %v", metadata, s)
		}
		if s := otel.JobProducer(jobs.Header{Meta: json.RawMessage(metadata)}); s.IsValid() {
			t.Errorf("%s: %v", metadata, s)
		}
	}
}

// An event that has a trace gets another: nothing of the old one stays.
func TestInjectAgain(t *testing.T) {
	event := store.Event{Metadata: []byte(`{"a": 1}`)}
	for _, span := range []trace.SpanContext{spanContext(1, true, "x=1"), spanContext(2, true, "")} {
		if err := otel.Inject(in(span), &event); err != nil {
			t.Fatal(err)
		}
		if got := otel.Producer(store.PersistedEvent{Metadata: event.Metadata}); !got.Equal(span) {
			t.Errorf("of %s comes %v, want %v", event.Metadata, got, span)
		}
	}
}
