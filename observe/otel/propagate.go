package otel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/store"
)

var w3c propagation.TraceContext

// Inject puts the span of ctx into the metadata of an event, as the keys traceparent and tracestate
// of W3C Trace Context. Other keys stay as they are. Without a span in ctx, Inject changes nothing.
// If the metadata is neither empty nor a JSON object, Inject returns an error and changes nothing.
func Inject(ctx context.Context, event *store.Event) error {
	if event == nil {
		return errors.New("otel: the event is nil")
	}
	metadata, err := injected(ctx, event.Metadata)
	if err != nil {
		return fmt.Errorf("otel: metadata of an event of the type %q: %w", event.EventType, err)
	}
	event.Metadata = metadata
	return nil
}

// Producer returns the span that was put into an event by [Inject]. It is not valid if
// there is none.
func Producer(event store.PersistedEvent) trace.SpanContext { return producerIn(event.Metadata) }

// Meta is jobs.Meta, with the span of ctx put into v: the keys traceparent and tracestate
// are added to the JSON object that v is. v may be nil. Enqueueing fails if v is anything
// else.
func Meta(ctx context.Context, v any) jobs.EnqueueOption {
	if v == nil && !trace.SpanContextFromContext(ctx).IsValid() {
		return nil // which is no option
	}
	return jobs.Meta(meta{ctx, v})
}

// JobProducer returns the span that was put into a job by [Meta]. It is not valid if there
// is none.
func JobProducer(job jobs.Header) trace.SpanContext { return producerIn(job.Meta) }

// meta is the Meta of a job: a value, with the span of ctx.
type meta struct {
	ctx context.Context
	v   any
}

// MarshalJSON writes v with the span.
func (m meta) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(m.v)
	if err != nil {
		return nil, err
	}
	return injected(m.ctx, text)
}

// injected returns a JSON object with the span of ctx added. The object may be absent.
func injected(ctx context.Context, object []byte) ([]byte, error) {
	added := propagation.MapCarrier{}
	w3c.Inject(ctx, added)
	fields, err := fieldsOf(object)
	if err != nil || len(added) == 0 {
		return object, err
	}
	if fields == nil {
		fields = map[string]json.RawMessage{}
	}
	delete(fields, "tracestate") // of another span
	for key, value := range added {
		fields[key], _ = json.Marshal(value)
	}
	return json.Marshal(fields)
}

// fieldsOf reads a JSON object, nil if there is none.
func fieldsOf(object []byte) (fields map[string]json.RawMessage, err error) {
	if len(bytes.TrimSpace(object)) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(object, &fields); err != nil {
		return nil, fmt.Errorf("it must be a JSON object, or absent, to take a trace: %w", err)
	}
	return fields, nil
}

// producerIn returns the span that Inject or Meta has put into a JSON object. It returns none if
// the object has no span, or if data is not a JSON object.
func producerIn(object []byte) trace.SpanContext {
	if !bytes.Contains(object, []byte("traceparent")) {
		return trace.SpanContext{}
	}
	fields, _ := fieldsOf(object) // not a struct's: those do not tell apart upper and lower case
	carrier := propagation.MapCarrier{}
	for _, key := range w3c.Fields() {
		var value string
		if json.Unmarshal(fields[key], &value) == nil {
			carrier[key] = value
		}
	}
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), carrier))
}
