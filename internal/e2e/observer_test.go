package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// hooks are the names of the Observer's hooks.
func hooks() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[worker.Observer]()) {
		if f.IsExported() {
			names = append(names, f.Name)
		}
	}
	return names
}

// everything returns an Observer whose every hook calls saw with its name and
// what it was told.
func everything(saw func(hook string, about any)) worker.Observer {
	var o worker.Observer
	for _, name := range hooks() {
		hook := reflect.ValueOf(&o).Elem().FieldByName(name)
		hook.Set(reflect.MakeFunc(hook.Type(), func(args []reflect.Value) []reflect.Value {
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

func (s *sightings) first(hook string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Index(s.all, hook)
}

func (s *sightings) last(hook string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, one := range slices.Backward(s.all) {
		if one == hook {
			return i
		}
	}
	return -1
}

// callCount is a store.Logger that counts its calls.
type callCount struct{ calls atomic.Int32 }

func (c *callCount) Debug(context.Context, string, ...any) { c.calls.Add(1) }
func (c *callCount) Info(context.Context, string, ...any)  { c.calls.Add(1) }
func (c *callCount) Error(context.Context, string, ...any) { c.calls.Add(1) }

// An Observer is told everything, and a log that is there several times says
// each once.
func TestObserverIsToldEverything(t *testing.T) {
	t.Parallel()
	var s sightings
	var log pgtest.Lines
	var own callCount
	l := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	callEveryHook(t, &s, worker.WithSlog(l), worker.WithLogger(store.NewSlogLogger(l)), worker.WithObserver(worker.NewSlogObserver(l)),
		worker.WithLogger(&own),
		worker.WithObserver(worker.Observer{WorkerStarted: func(worker.WorkerInfo) { panic("a bad hook") }}),
		worker.WithObserver(everything(s.saw)))
	if lines := len(linesOf(&log)); lines != len(s.all) || int(own.calls.Load()) != len(s.all) {
		t.Errorf("the logs have %d and %d lines for %d calls of hooks", lines, own.calls.Load(), len(s.all))
	}
	order := []int{s.first("WorkerStarted"), s.first("ConsumerStarted"), s.first("BatchStarted"), s.first("BatchDone"), s.last("ConsumerStopped"), s.last("WorkerStopped")}
	if !slices.IsSorted(order) || order[0] < 0 {
		t.Errorf("starts, a batch and the last stops came in another order, %v: %v", order, s.all)
	}
}

func TestBatchesAreDescribed(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	var calls []string
	saw := func(who string) func(string, any) {
		return func(hook string, about any) { calls = append(calls, fmt.Sprint(who, hook, about)) }
	}
	if !reflect.ValueOf(worker.Tee(worker.Observer{}, worker.Observer{})).IsZero() {
		t.Error("a tee of nothing is something")
	}
	tee := worker.Tee(everything(saw("a")), worker.Observer{}, everything(saw("b")))
	var want []string
	for _, name := range hooks() {
		hook := reflect.ValueOf(tee).FieldByName(name)
		arg := reflect.Zero(hook.Type().In(0))
		hook.Call([]reflect.Value{arg})
		for _, who := range []string{"a", "b"} {
			want = append(want, fmt.Sprint(who, name, arg.Interface()))
		}
	}
	if !slices.Equal(calls, want) {
		t.Errorf("got  %v\nwant %v", calls, want)
	}
}

func TestSlogObserver(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := worker.NewSlogObserver(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for _, name := range hooks() {
		hook := reflect.ValueOf(o).FieldByName(name)
		if hook.IsNil() {
			t.Fatalf("%s is not logged", name)
		}
		out.Reset()
		hook.Call([]reflect.Value{reflect.Zero(hook.Type().In(0))})
		if lines := strings.Count(out.String(), "\n"); lines != 1 {
			t.Errorf("%s logs %d lines: %s", name, lines, &out)
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

// An Observer that was made to log, and changed, logs by the hooks that were not.
func TestSlogObserverThatIsChanged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := slog.New(slog.NewTextHandler(&out, nil))
	changed := worker.NewSlogObserver(l)
	paused := 0
	changed.ConsumerPaused = func(worker.ConsumerInfo) { paused++ }
	other := worker.NewSlogObserver(l.With("by", "other"))
	o := worker.Tee(worker.NewSlogObserver(l), changed, other)
	o.ConsumerPaused(worker.ConsumerInfo{})
	o.ConsumerStarted(worker.ConsumerInfo{})
	if s := out.String(); paused != 1 || strings.Count(s, "consumer paused") != 2 || strings.Count(s, "consumer started") != 2 || strings.Count(s, "by=other") != 2 {
		t.Errorf("the changed hook was called %d times, logged was\n%s", paused, s)
	}
}
