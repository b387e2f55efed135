package worker_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
)

// everything returns an Observer whose every hook calls saw with its name and
// what it was told.
func everything(saw func(hook string, about any)) worker.Observer {
	var o worker.Observer
	v := reflect.ValueOf(&o).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		v.Field(i).Set(reflect.MakeFunc(v.Field(i).Type(), func(args []reflect.Value) []reflect.Value {
			saw(name, args[0].Interface())
			return nil
		}))
	}
	return o
}

type sightings struct {
	mu  sync.Mutex
	all []string
}

func (s *sightings) saw(hook string, _ any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, hook)
}

func (s *sightings) index(hook string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Index(s.all, hook)
}

func TestObserverIsToldEverything(t *testing.T) {
	var s sightings
	callEveryHook(t, &s, worker.WithObserver(everything(s.saw)))
	order := []string{"WorkerStarted", "ConsumerStarted", "BatchStarted", "BatchDone", "ConsumerStopped", "WorkerStopped"}
	if !slices.IsSortedFunc(order, func(a, b string) int { return s.index(a) - s.index(b) }) {
		t.Errorf("the first calls of %v came in another order: %v", order, s.all)
	}
}

// callEveryHook lets two workers meet everything that an Observer is told of.
func callEveryHook(t *testing.T, s *sightings, opts ...worker.Option) {
	t.Helper()
	d := newLog(t)
	options := func(policy worker.FailurePolicy) []worker.Option {
		return append([]worker.Option{
			worker.WithFailurePolicy(policy), worker.WithMaxConsecutiveFailures(2), worker.WithStaleGapThreshold(20 * time.Millisecond),
		}, opts...)
	}
	open := beginAppend(t, d.DB, "Order", "open", 1)
	appendN(t, d.DB, "Order", "1", 3)
	w := start(t, d.DB, []consumer.Consumer{newRefusing("c", 3)}, options(worker.FailDeadLetter)...)
	awaitHandled(t, d.DB, "c", 2)
	if err := open.Rollback(); err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{"Skipped", "FrontierBlocked", "DeadLettered", "Retrying", "Woken"} {
		await(t, hook, func() bool { return s.index(hook) >= 0 })
	}
	d.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 10`)
	await(t, "FrontierFailed", func() bool { return s.index("FrontierFailed") >= 0 })
	d.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 1`)
	await(t, "Recovered", func() bool { return s.index("Recovered") >= 0 })
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	p := start(t, d.DB, []consumer.Consumer{newRefusing("paused", 3)}, options(worker.FailPause)...)
	await(t, "ConsumerPaused", func() bool { return s.index("ConsumerPaused") >= 0 })
	p.Stop()
	if err := p.result(t); err != nil {
		t.Fatal(err)
	}
	deaf := newDeaf("deaf")
	start(t, d.DB, []consumer.Consumer{deaf}, append(options(worker.FailStop), worker.WithBatchTimeout(100*time.Millisecond),
		worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify), worker.WithNotifyConnectionString("postgres://127.0.0.1:1/nowhere"))...)
	await(t, "HandlerOverdue", func() bool { return s.index("HandlerOverdue") >= 0 })
	close(deaf.release)
	for i := range reflect.TypeFor[worker.Observer]().NumField() {
		if hook := reflect.TypeFor[worker.Observer]().Field(i).Name; s.index(hook) < 0 {
			t.Errorf("%s was never called", hook)
		}
	}
}

func TestBatchesAreDescribed(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 5)
	done := make(chan worker.Batch, 100)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithBatchSize(3), worker.WithObserver(worker.Observer{BatchDone: func(b worker.Batch) { done <- b }}))
	from := int64(0)
	for _, events := range []int{3, 2} {
		b := <-done
		to := from + int64(events)
		if b.Consumer != "c" || b.Attempt != 1 || b.Events != events || b.From != from || b.To != to || b.First != from+1 || b.Last != to || b.Late != 0 || b.Err != nil || b.Overtaken {
			t.Errorf("%+v", b)
		}
		if b.Guard <= 0 || b.Handle <= 0 || b.Commit <= 0 || b.Read <= 0 {
			t.Errorf("a part took no time: %+v", b)
		}
		from = to
	}
}

func TestTee(t *testing.T) {
	var calls []string
	saw := func(who string) func(string, any) {
		return func(hook string, about any) { calls = append(calls, fmt.Sprint(who, hook, about)) }
	}
	if !reflect.ValueOf(worker.Tee(worker.Observer{}, worker.Observer{})).IsZero() {
		t.Error("a tee of nothing is something")
	}
	tee := worker.Tee(everything(saw("a")), worker.Observer{}, everything(saw("b")))
	v := reflect.ValueOf(tee)
	var want []string
	for i := range v.NumField() {
		arg := reflect.Zero(v.Field(i).Type().In(0))
		v.Field(i).Call([]reflect.Value{arg})
		for _, who := range []string{"a", "b"} {
			want = append(want, fmt.Sprint(who, v.Type().Field(i).Name, arg.Interface()))
		}
	}
	if !slices.Equal(calls, want) {
		t.Errorf("got  %v\nwant %v", calls, want)
	}
}

func TestSlogObserver(t *testing.T) {
	var out bytes.Buffer
	o := worker.NewSlogObserver(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	v := reflect.ValueOf(o)
	for i := range v.NumField() {
		if v.Field(i).IsNil() {
			t.Fatalf("%s is not logged", v.Type().Field(i).Name)
		}
		out.Reset()
		v.Field(i).Call([]reflect.Value{reflect.Zero(v.Field(i).Type().In(0))})
		if lines := strings.Count(out.String(), "\n"); lines != 1 {
			t.Errorf("%s logs %d lines: %s", v.Type().Field(i).Name, lines, &out)
		}
	}
	out.Reset()
	id := uuid.New()
	o.WorkerStopped(worker.WorkerInfo{ID: id, Err: errors.New("boom")})
	if s := out.String(); !strings.Contains(s, "level=ERROR") || !strings.Contains(s, id.String()) || !strings.Contains(s, "boom") {
		t.Errorf("logged %s", s)
	}
	out.Reset()
	long := strings.Repeat("x", 1<<20)
	o.DeadLettered(worker.DeadLetter{AggregateType: long, AggregateID: long, EventType: long})
	if out.Len() > 2_000 || strings.Count(out.String(), "1048576 bytes") != 3 {
		t.Errorf("of three texts of a megabyte: %d bytes, %.500s", out.Len(), &out)
	}
}
