package otel_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/metricstest"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/otel"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

const patience = pgtest.Patience

// tracing is a Telemetry whose spans are kept.
type tracing struct {
	*otel.Telemetry
	t      *testing.T
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer
	meters *sdkmetric.ManualReader
}

func newTracing(t *testing.T, options ...otel.Option) *tracing {
	t.Helper()
	spans, meters := tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
	limits := sdk.NewSpanLimits()
	limits.LinkCountLimit = 10 * otel.MaxLinks // not the SDK's, which is 128, too
	provider := sdk.NewTracerProvider(sdk.WithRawSpanLimits(limits), sdk.WithSpanProcessor(spans), sdk.WithSampler(sdk.ParentBased(sdk.AlwaysSample())))
	telemetry, err := otel.New(append([]otel.Option{otel.WithTracerProvider(provider), otel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(meters)))}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return &tracing{telemetry, t, spans, provider.Tracer("test"), meters}
}

// await waits until so many spans of a name have ended.
func (x *tracing) await(name string, n int) (found []sdk.ReadOnlySpan) {
	x.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		found = nil
		for _, s := range x.spans.Ended() {
			if s.Name() == name {
				found = append(found, s)
			}
		}
		if len(found) >= n {
			return found
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("waited in vain for %d spans %q", n, name)
		}
	}
}

// append appends an event for each producer, in one transaction: one batch has them.
func (x *tracing) append(db *sql.DB, producers ...trace.SpanContext) {
	x.t.Helper()
	events := make([]store.Event, len(producers))
	for i, p := range producers {
		events[i].Metadata = []byte(`{"tenant": 7}`)
		if err := otel.Inject(in(p), &events[i]); err != nil {
			x.t.Fatal(err)
		}
	}
	metricstest.Commit(x.t, metricstest.Append(x.t, db, "a", events...))
}

func linksOf(s sdk.ReadOnlySpan) (all []string) {
	for _, l := range s.Links() {
		all = append(all, text(l.SpanContext))
	}
	return all
}

func text(s trace.SpanContext) string {
	return strings.Join([]string{s.TraceID().String(), s.SpanID().String(), s.TraceFlags().String(), s.TraceState().String()}, "-")
}

func valueOf(s sdk.ReadOnlySpan, key attribute.Key) attribute.Value {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value
		}
	}
	return attribute.Value{}
}

// each handles one event at a time; many handles all of a batch.
type each struct {
	handle func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
}

func (each) Name() string { return "each" }

func (c each) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	return c.handle(ctx, tx, e)
}

type many struct {
	consumer.BatchOnly
	handle func(ctx context.Context, events []store.PersistedEvent) error
}

func (many) Name() string { return "many" }

func (c many) HandleBatch(ctx context.Context, _ *sql.Tx, events []store.PersistedEvent) error {
	return c.handle(ctx, events)
}

// The span of a batch is linked to each producer that is sampled, once, and the handler runs
// within it. It begins a trace of its own.
func TestBatchSpan(t *testing.T) {
	d := pgtest.New(t)
	x := newTracing(t)
	within := make(chan trace.SpanContext, 10)
	all := []consumer.Consumer{
		each{func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
			within <- trace.SpanContextFromContext(ctx)
			return nil
		}},
		many{handle: func(ctx context.Context, events []store.PersistedEvent) error {
			if len(events) != 5 || string(events[3].Metadata) != `{"tenant": 7}` {
				t.Errorf("handled %d events", len(events))
			}
			return nil
		}},
	}
	one := spanContext(1, true, "a=1")
	two := one.WithSpanID(trace.SpanID{9}) // of the same trace
	x.append(d.DB, one, spanContext(3, false, ""), two, trace.SpanContext{}, one)
	// As if Start had been given a context with a span.
	_, end := metricstest.Start(t, d.DB, x, all, worker.WithBatchMiddleware(func(next worker.BatchFunc) worker.BatchFunc {
		next = x.Batch(next)
		return func(_ context.Context, b observe.Batch) error { return next(in(spanContext(9, true, "")), b) }
	}))
	for _, name := range []string{"each", "many"} {
		s := x.await("process "+name, 1)[0]
		if got, want := linksOf(s), []string{text(one), text(two)}; !slices.Equal(got, want) {
			t.Errorf("%s: the links are %q, want %q", name, got, want)
		}
		if s.SpanKind() != trace.SpanKindConsumer || s.Parent().IsValid() || s.Status().Code != codes.Unset ||
			valueOf(s, "pgfrontier.consumer").AsString() != name || valueOf(s, "pgfrontier.batch.events").AsInt64() != 5 || valueOf(s, "pgfrontier.batch.attempt").AsInt64() != 1 {
			t.Errorf("%s: kind %v, parent %v, status %v, attributes %v", name, s.SpanKind(), s.Parent(), s.Status(), s.Attributes())
		}
		if name == "each" {
			if got := <-within; !got.Equal(s.SpanContext()) {
				t.Errorf("the handler runs within %v, want %v", got, s.SpanContext())
			}
		}
	}
	end()
	if n := len(x.await("handle", 0)); n > 0 {
		t.Errorf("%d spans of calls that nobody has asked for", n)
	}
	x.exemplars()
}

// exemplars demands that a delivery leads to the trace of its batch.
func (x *tracing) exemplars() {
	x.t.Helper()
	want := x.await("process each", 1)[0].SpanContext().TraceID()
	data := collect(x.t, x.meters)["pgfrontier.delivery.duration"].Data.(metricdata.Histogram[float64])
	for _, p := range data.DataPoints {
		for _, e := range p.Exemplars {
			if slices.Equal(e.TraceID, want[:]) {
				return
			}
		}
	}
	x.t.Errorf("no exemplar of the trace %v in %+v", want, data.DataPoints)
}

// A span has 128 links and no more.
func TestLinksAreBounded(t *testing.T) {
	d := pgtest.New(t)
	x := newTracing(t, otel.WithEventSpans())
	const first = 10 // events of the first batch
	var producers []trace.SpanContext
	for n := range byte(first + otel.MaxLinks + 10) {
		producers = append(producers, spanContext(n, true, ""))
	}
	x.append(d.DB, producers...)
	_, end := metricstest.Start(t, d.DB, x, []consumer.Consumer{
		each{func(context.Context, *sql.Tx, store.PersistedEvent) error { return nil }},
		many{handle: func(context.Context, []store.PersistedEvent) error { return nil }},
	}, worker.WithBatchSize(500))
	for _, name := range []string{"process each", "process many"} {
		if n := len(x.await(name, 2)[1].Links()); n != otel.MaxLinks {
			t.Errorf("%s has %d links", name, n)
		}
	}
	end()
	for _, s := range x.await("handle", 0) {
		if n := len(s.Links()); n != 1 && n != first && n != otel.MaxLinks {
			t.Errorf("a call has %d links", n)
		}
	}
}

// With event spans, each call of a handler has a span below the batch's, with the links of its
// events. An error is told by both.
func TestEventSpans(t *testing.T) {
	d := pgtest.New(t)
	x := newTracing(t, otel.WithEventSpans())
	within := make(chan trace.SpanContext, 10)
	refused := errors.New("refused")
	one, two := spanContext(1, true, ""), spanContext(2, true, "")
	x.append(d.DB, one, two)
	_, end := metricstest.Start(t, d.DB, x, []consumer.Consumer{each{func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		within <- trace.SpanContextFromContext(ctx)
		if d, _ := consumer.Info(ctx); e.GlobalPosition == 2 && d.Attempt == 1 {
			return refused
		}
		return nil
	}}})
	calls := x.await("handle", 4)
	end()
	failed := x.await("process each", 1)[0]
	for i, s := range calls[:2] {
		if got, want := linksOf(s), text([]trace.SpanContext{one, two}[i]); !slices.Equal(got, []string{want}) {
			t.Errorf("the links of call %d are %q, want %q", i, got, want)
		}
		if s.Parent().SpanID() != failed.SpanContext().SpanID() || s.SpanKind() != trace.SpanKindInternal ||
			valueOf(s, "pgfrontier.event.type").AsString() != "Placed" || valueOf(s, "pgfrontier.consumer").AsString() != "each" {
			t.Errorf("call %d: parent %v, kind %v, attributes %v", i, s.Parent(), s.SpanKind(), s.Attributes())
		}
		if got := <-within; got.SpanID() != s.SpanContext().SpanID() {
			t.Errorf("call %d runs within %v, want %v", i, got, s.SpanContext())
		}
	}
	if calls[0].Status().Code != codes.Unset || calls[1].Status().Code != codes.Error || !strings.Contains(calls[1].Status().Description, "refused") {
		t.Errorf("the calls ended with %v, %v", calls[0].Status(), calls[1].Status())
	}
	if failed.Status().Code != codes.Error || len(failed.Events()) != 1 || !strings.Contains(failed.Status().Description, "refused") {
		t.Errorf("the batch ended with %v, %v", failed.Status(), failed.Events())
	}
}

// What is not sampled costs no links.
func TestBatchThatIsNotSampled(t *testing.T) {
	d := pgtest.New(t)
	spans := tracetest.NewSpanRecorder()
	telemetry, err := otel.New(otel.WithTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans), sdk.WithSampler(sdk.NeverSample()))))
	if err != nil {
		t.Fatal(err)
	}
	handled := make(chan trace.SpanContext, 1)
	x := &tracing{Telemetry: telemetry, t: t}
	x.append(d.DB, spanContext(1, true, ""))
	_, end := metricstest.Start(t, d.DB, telemetry, []consumer.Consumer{each{func(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		handled <- trace.SpanContextFromContext(ctx)
		return nil
	}}})
	select {
	case s := <-handled:
		if s.IsSampled() {
			t.Errorf("the handler runs within %v", s)
		}
	case <-time.After(patience):
		t.Fatal("waited in vain for the event")
	}
	end()
	if n := len(spans.Ended()); n > 0 {
		t.Errorf("%d spans", n)
	}
}

// From the append of an event, through a handler that enqueues a job, to the job's handler: each
// span is linked to the one before.
func TestFromAppendToJob(t *testing.T) {
	d := metricstest.NewJobs(t)
	x := newTracing(t)
	client := jobs.NewClient(d.DB)
	ctx, producer := x.tracer.Start(t.Context(), "place an order")
	event := store.Event{}
	if err := otel.Inject(ctx, &event); err != nil {
		t.Fatal(err)
	}
	producer.End()
	metricstest.Commit(t, metricstest.Append(t, d.DB, "a", event))
	_, end := metricstest.Start(t, d.DB, x, []consumer.Consumer{each{func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
		_, err := client.Enqueue(ctx, tx, metricstest.Task{}, otel.Meta(ctx, map[string]any{"by": "ann"}))
		return err
	}}})
	batch := x.await("process each", 1)[0]
	end()
	handlers := jobs.NewHandlers()
	given := make(chan jobs.Header, 1)
	within := make(chan trace.SpanContext, 1)
	jobs.Register(handlers, func(ctx context.Context, j *jobs.Job[metricstest.Task]) error {
		given <- j.Header
		within <- trace.SpanContextFromContext(ctx)
		return nil
	})
	_, end = metricstest.StartJobs(t, d.DB, x, handlers)
	run := x.await("process task", 1)[0]
	end()
	if got := linksOf(batch); !slices.Equal(got, []string{text(producer.SpanContext())}) {
		t.Errorf("the batch is linked to %q, want %q", got, text(producer.SpanContext()))
	}
	if got := linksOf(run); !slices.Equal(got, []string{text(batch.SpanContext())}) {
		t.Errorf("the job is linked to %q, want %q", got, text(batch.SpanContext()))
	}
	if got := <-within; !got.Equal(run.SpanContext()) || run.Parent().IsValid() || run.SpanKind() != trace.SpanKindConsumer {
		t.Errorf("the handler runs within %v, want %v, of the parent %v and the kind %v", got, run.SpanContext(), run.Parent(), run.SpanKind())
	}
	var meta map[string]string
	if err := json.Unmarshal((<-given).Meta, &meta); err != nil || meta["by"] != "ann" {
		t.Errorf("the job has %v, %v beside its arguments", meta, err)
	}
	if valueOf(run, "pgfrontier.job.kind").AsString() != "task" || valueOf(run, "pgfrontier.job.queue").AsString() != "default" || valueOf(run, "pgfrontier.job.attempt").AsInt64() != 1 {
		t.Errorf("the job's span has %v", run.Attributes())
	}
}

// A batch of jobs is linked to all who have enqueued them. Jobs without a trace, and what cannot
// take one.
func TestMeta(t *testing.T) {
	d := metricstest.NewJobs(t)
	x := newTracing(t)
	client := jobs.NewClient(d.DB)
	one, two := spanContext(1, true, ""), spanContext(2, true, "a=1")
	enqueue := func(o jobs.EnqueueOption) error {
		_, err := client.Enqueue(t.Context(), nil, metricstest.Task{}, o)
		return err
	}
	for i, o := range []jobs.EnqueueOption{otel.Meta(in(one), nil), otel.Meta(in(two), struct{ By string }{"ann"}), otel.Meta(t.Context(), nil), otel.Meta(t.Context(), 5)} {
		if err := enqueue(o); (err != nil) != (i == 3) {
			t.Errorf("job %d: %v", i, err)
		}
	}
	for _, bad := range []any{5, "a", []int{1}, func() {}} {
		if err := enqueue(otel.Meta(in(one), bad)); !errors.Is(err, jobs.ErrInvalid) {
			t.Errorf("%T is taken: %v", bad, err)
		}
	}
	handlers := jobs.NewHandlers()
	jobs.RegisterBatch(handlers, func(_ context.Context, all []*jobs.Job[metricstest.Task]) error {
		if len(all) != 3 || all[2].Meta != nil && string(all[2].Meta) != "null" {
			t.Errorf("%d jobs, the last with %s", len(all), all[len(all)-1].Meta)
		}
		return jobs.Fail(errors.New("refused"))
	}, jobs.BatchSize(10))
	_, end := metricstest.StartJobs(t, d.DB, x, handlers)
	run := x.await("process task", 1)[0]
	end()
	if got := linksOf(run); !slices.Equal(got, []string{text(one), text(two)}) {
		t.Errorf("the links are %q", got)
	}
	if run.Status().Code != codes.Error || valueOf(run, "pgfrontier.batch.jobs").AsInt64() != 3 {
		t.Errorf("the run ended with %v, %v", run.Status(), run.Attributes())
	}
}

// A job that runs again later, or is not needed any more, is no error of its span.
func TestSpansOfJobsThatDoNotFail(t *testing.T) {
	d := metricstest.NewJobs(t)
	x := newTracing(t)
	outcomes := []error{jobs.Snooze(time.Hour), jobs.Discard(errors.New("not needed")), jobs.Fail(errors.New("refused"))}
	for range outcomes {
		if _, err := jobs.NewClient(d.DB).Enqueue(t.Context(), nil, metricstest.Task{}); err != nil {
			t.Fatal(err)
		}
	}
	handlers := jobs.NewHandlers()
	jobs.Register(handlers, func(_ context.Context, j *jobs.Job[metricstest.Task]) error { return outcomes[j.ID-1] })
	_, end := metricstest.StartJobs(t, d.DB, x, handlers)
	failed := 0
	for _, run := range x.await("process task", len(outcomes)) {
		if run.Status().Code == codes.Error {
			failed++
		}
	}
	end()
	if failed != 1 {
		t.Errorf("%d spans have an error, want 1", failed)
	}
}
