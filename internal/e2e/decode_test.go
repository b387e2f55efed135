package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// decoding are a consumer of single events and one of batches that refuse what was not
// decoded.
func decoding() []consumer.Consumer {
	upcast := func(events ...store.PersistedEvent) error {
		for _, e := range events {
			if e.EventVersion != 2 || string(e.Payload) != `{"v": 2}` {
				return fmt.Errorf("version %d with %s arrived", e.EventVersion, e.Payload)
			}
		}
		return nil
	}
	return []consumer.Consumer{
		&ledger{name: "one", before: func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error { return upcast(e) }},
		&bulkLedger{name: "bulk", fails: func(events []store.PersistedEvent) error { return upcast(events...) }},
	}
}

func upcast(_ context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
	e.EventVersion, e.Payload = 2, []byte(`{"v": 2}`)
	return e, nil
}

func TestDecoder(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 50)
	start(t, d.DB, decoding(), worker.WithDecoder(func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
		if _, ok := consumer.Info(ctx); !ok {
			return e, errors.New("the context tells nothing of the delivery")
		}
		return upcast(ctx, e)
	}))
	awaitHandled(t, d.DB, "one", upTo(50)...)
	awaitHandled(t, d.DB, "bulk", upTo(50)...)
}

// What a decoder cannot decode fails as if the handler had failed at this event: it
// is found in the batch, tried again, and then the policy applies.
func TestDecoderThatFails(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]struct {
		decode func(e store.PersistedEvent) (store.PersistedEvent, error)
		says   string
	}{
		"an error":          {func(e store.PersistedEvent) (store.PersistedEvent, error) { return e, errRefused }, "decode the event (WithDecoder): refused"},
		"a panic":           {func(store.PersistedEvent) (store.PersistedEvent, error) { panic("no key") }, "no key"},
		"another position":  {func(e store.PersistedEvent) (store.PersistedEvent, error) { e.GlobalPosition++; return e, nil }, "GlobalPosition from \"37\" to \"38\""},
		"another event id":  {func(e store.PersistedEvent) (store.PersistedEvent, error) { e.EventID = uuid.Nil; return e, nil }, "EventID"},
		"another type":      {func(e store.PersistedEvent) (store.PersistedEvent, error) { e.AggregateType = "X"; return e, nil }, "AggregateType from \"Order\" to \"X\""},
		"another aggregate": {func(e store.PersistedEvent) (store.PersistedEvent, error) { e.AggregateID = "X"; return e, nil }, "AggregateID from \"36\" to \"X\""},
		"another version":   {func(e store.PersistedEvent) (store.PersistedEvent, error) { e.AggregateVersion = 7; return e, nil }, "AggregateVersion from \"1\" to \"7\""},
		"another correlation": {func(e store.PersistedEvent) (store.PersistedEvent, error) {
			e.CorrelationID.String = "X"
			return e, nil
		}, "CorrelationID"},
		"another causation":      {func(e store.PersistedEvent) (store.PersistedEvent, error) { e.CausationID.String = "X"; return e, nil }, "CausationID"},
		"another trace":          {func(e store.PersistedEvent) (store.PersistedEvent, error) { e.TraceID.String = "X"; return e, nil }, "TraceID"},
		"no event, and no error": {func(store.PersistedEvent) (store.PersistedEvent, error) { return store.PersistedEvent{}, nil }, "GlobalPosition from \"37\" to \"0\""},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "another") && name != "another position" && name != "another aggregate" {
				tier.Long(t, "TestDecoderThatFails, whose decoders change the position and the aggregate")
			}
			d := newLog(t)
			for i := range 100 {
				appendN(t, d.DB, "Order", fmt.Sprint(i), 1)
			}
			start(t, d.DB, decoding(), worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(2),
				worker.WithDecoder(func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
					if e.GlobalPosition == 37 {
						return fail.decode(e)
					}
					return upcast(ctx, e)
				}))
			for _, c := range []string{"one", "bulk"} {
				awaitHandled(t, d.DB, c, slices.DeleteFunc(upTo(100), func(p int64) bool { return p == 37 })...)
				letters, err := operator(t, d).DeadLetters(t.Context(), c)
				if err != nil || len(letters) != 1 || letters[0].Position != 37 || letters[0].AggregateID != "36" || !strings.Contains(letters[0].Error, fail.says) {
					t.Errorf("the dead letters of %s are %+v, %v", c, letters, err)
				}
			}
		})
	}
}

// An operator skips an event that nobody can decode, as any other.
func TestDecoderThatFailsIsSkipped(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	w := start(t, d.DB, decoding()[:1], worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(2),
		worker.WithDecoder(func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
			if e.GlobalPosition == 2 {
				return e, errRefused
			}
			return upcast(ctx, e)
		}))
	await(t, "the consumer to be paused", func() bool { return statusOf(w.Worker, "one").Paused != nil })
	by := ops.By{Operator: "ann", Reason: "its key is lost"}
	o := operator(t, d)
	if err := errors.Join(o.SkipEvent(t.Context(), "one", 2, by), o.Resume(t.Context(), "one", by)); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "one", 1, 3)
}

// A decoder that writes into the payload that it was given changes it for its own
// consumer only, and not for the next attempt.
func TestDecoderInPlace(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 20)
	var all []consumer.Consumer
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, &ledger{name: name, before: func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
			if string(e.Payload) != "[]" {
				return fmt.Errorf("%s arrived", e.Payload)
			}
			return nil
		}})
	}
	start(t, d.DB, all, worker.WithDecoder(func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
		if !bytes.Equal(e.Payload, []byte("{}")) {
			return e, fmt.Errorf("%s was stored", e.Payload)
		}
		copy(e.Payload, "[]")
		return e, nil
	}))
	for _, name := range []string{"a", "b", "c"} {
		awaitHandled(t, d.DB, name, upTo(20)...)
	}
}

// A decoder that does not care for its context keeps a batch until it returns. The handler
// gets no event after that: its context has ended.
func TestDecoderThatIsOverdue(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 2)
	var calls atomic.Int32
	l := &ledger{name: "c", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		if ctx.Err() != nil {
			t.Error("the handler was called in a batch that had ended")
		}
		return nil
	}}
	start(t, d.DB, []consumer.Consumer{l}, worker.WithBatchTimeout(time.Second), worker.WithDecoder(func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error) {
		if calls.Add(1) == 1 {
			<-ctx.Done()
		}
		return e, nil
	}))
	awaitHandled(t, d.DB, "c", 1, 2)
}
