package otel

import (
	"context"
	"database/sql"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// MaxLinks is how many producers a span is linked to. The links to others are left out.
const MaxLinks = 128

type batchKey struct{}

// batch is the span of a batch. The batch's goroutine alone has it.
type batch struct {
	span  trace.Span
	links links
}

// Batch makes a span for each batch. See [Telemetry.Options].
func (t *Telemetry) Batch(next worker.BatchFunc) worker.BatchFunc {
	next = t.recorder.Batch(next)
	return func(ctx context.Context, b observe.Batch) error {
		name, partition, _ := strings.Cut(b.Consumer, "#")
		attributes := []attribute.KeyValue{
			attribute.String("pgfrontier.consumer", name),
			attribute.Int("pgfrontier.batch.events", b.Events),
			attribute.Int("pgfrontier.batch.late", b.Late),
			attribute.Int("pgfrontier.batch.attempt", b.Attempt),
		}
		if partition != "" {
			attributes = append(attributes, attribute.String("pgfrontier.partition", partition))
		}
		ctx, span := t.tracer.Start(ctx, "process "+name, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributes...))
		defer span.End()
		err := next(context.WithValue(ctx, batchKey{}, &batch{span: span}), b)
		return ended(span, err)
	}
}

// Handle links the batch's span to the producers of the events. See [Telemetry.Options].
func (t *Telemetry) Handle(next worker.HandleFunc) worker.HandleFunc {
	next = t.recorder.Handle(next)
	return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
		b, _ := ctx.Value(batchKey{}).(*batch)
		if b == nil || !b.span.IsRecording() && !t.eventSpans {
			return next(ctx, tx, events)
		}
		var here links
		for i := range events {
			if !t.eventSpans && len(b.links.all) == MaxLinks {
				break
			}
			producer := Producer(events[i])
			if b.links.add(producer) {
				b.span.AddLink(trace.Link{SpanContext: producer})
			}
			here.add(producer)
		}
		if !t.eventSpans {
			return next(ctx, tx, events)
		}
		ctx, span := t.tracer.Start(ctx, "handle", trace.WithLinks(here.all...), trace.WithAttributes(handled(ctx, events)...))
		defer span.End()
		return ended(span, next(ctx, tx, events))
	}
}

// handled describes a call of a handler. The type of an event is an attribute of calls with one
// event.
func handled(ctx context.Context, events []store.PersistedEvent) []attribute.KeyValue {
	d, _ := consumer.Info(ctx)
	all := []attribute.KeyValue{attribute.String("pgfrontier.consumer", d.Consumer), attribute.Bool("pgfrontier.late", d.Late)}
	if len(events) == 1 {
		return append(all, attribute.String("pgfrontier.event.type", events[0].EventType))
	}
	return append(all, attribute.Int("pgfrontier.batch.events", len(events)))
}

// Jobs makes a span for each call of a job's handler. It is middleware, see
// [Telemetry.JobsOptions].
func (t *Telemetry) Jobs(ctx context.Context, all []jobs.Header, next func(context.Context) error) error {
	var to links
	for _, j := range all {
		to.add(JobProducer(j))
	}
	attributes := []attribute.KeyValue{
		attribute.String("pgfrontier.job.kind", all[0].Kind),
		attribute.String("pgfrontier.job.queue", all[0].Queue),
		attribute.Int("pgfrontier.batch.jobs", len(all)),
	}
	if len(all) == 1 {
		attributes = append(attributes, attribute.Int("pgfrontier.job.attempt", all[0].Attempt))
	}
	ctx, span := t.tracer.Start(ctx, "process "+all[0].Kind, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(to.all...), trace.WithAttributes(attributes...))
	defer span.End()
	err := next(ctx)
	if !jobs.IsFailure(err) { // the job is snoozed, or discarded
		return err
	}
	return ended(span, err)
}

// links are the links of one span.
type links struct {
	all  []trace.Link
	seen map[trace.SpanID]bool
}

// add adds a producer whose trace is sampled. It reports whether it has added the producer: it adds
// no producer twice, and at most MaxLinks.
func (l *links) add(producer trace.SpanContext) bool {
	if !producer.IsValid() || !producer.IsSampled() || len(l.all) == MaxLinks || l.seen[producer.SpanID()] {
		return false
	}
	if l.seen == nil {
		l.seen = map[trace.SpanID]bool{}
	}
	l.seen[producer.SpanID()] = true
	l.all = append(l.all, trace.Link{SpanContext: producer})
	return true
}

// ended puts an error into a span.
func ended(span trace.Span, err error) error {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}
