package e2e

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store/consumer"
)

// eventTypes are the names of the events that event workers report.
func eventTypes(t testing.TB) (names []string) {
	t.Helper()
	for _, file := range []string{"worker.go", "consumer.go", "batch.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), "../../observe/"+file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, is := d.(*ast.FuncDecl); is && fn.Recv != nil && fn.Name.Name == "line" {
				names = append(names, fn.Recv.List[0].Type.(*ast.Ident).Name)
			}
		}
	}
	if len(names) < 30 {
		t.Fatalf("package observe has the events %v only", names)
	}
	return names
}

func typeOf(e observe.Event) string { return reflect.TypeOf(e).Name() }

type sightings struct {
	mu  sync.Mutex
	all []string
}

func (s *sightings) saw(e observe.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, typeOf(e))
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

// An observer is called with all events, and each logger logs each of them.
func TestObserverGetsEveryEvent(t *testing.T) {
	t.Parallel()
	var s sightings
	var log pgtest.Lines
	var own callCount
	l := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	causeEveryEvent(t, &s, worker.WithSlog(l),
		worker.WithLogger(&own),
		worker.WithObserver(observe.On(func(observe.WorkerStarted) { panic("a bad hook") })),
		worker.WithObserver(s.saw))
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
	done := make(chan observe.Batch, 100)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithBatchSize(3), worker.WithObserver(observe.On(func(b observe.BatchDone) { done <- b.Batch })))
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
