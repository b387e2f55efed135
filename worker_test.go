package worker_test

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Each option sets the field of Config that has its name.
func TestOptionsSetTheirFields(t *testing.T) {
	set := map[string]worker.Option{
		"BatchSize": worker.WithBatchSize(7), "BatchPause": worker.WithBatchPause(7), "BatchTimeout": worker.WithBatchTimeout(7),
		"MaxConsecutiveFailures": worker.WithMaxConsecutiveFailures(7), "FailurePolicy": worker.WithFailurePolicy(worker.FailPause),
		"RetryLimit": worker.WithRetryLimit(7), "ShutdownTimeout": worker.WithShutdownTimeout(7),
		"PollInterval": worker.WithPollInterval(7), "MaxPollInterval": worker.WithMaxPollInterval(7),
		"DispatcherStrategy": worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify), "DispatcherInterval": worker.WithDispatcherInterval(7),
		"NotifyConnectionString": worker.WithNotifyConnectionString("x"), "NotifyChannel": worker.WithNotifyChannel("x"),
		"HeartbeatInterval": worker.WithHeartbeatInterval(7), "HeartbeatTimeout": worker.WithHeartbeatTimeout(7),
		"RebalanceInterval": worker.WithRebalanceInterval(7), "LeaderStrategy": worker.WithLeaderStrategy(worker.LeaderStrategyLease),
		"Hostname": worker.WithHostname("x"), "AssignmentStrategy": worker.WithAssignmentStrategy(worker.AssignSticky),
		"StaleGapThreshold": worker.WithStaleGapThreshold(7), "StaleGapHarborLag": worker.WithStaleGapHarborLag(7),
		"GapPolicy": worker.WithGapPolicy(worker.GapWait), "MaxOpenRanges": worker.WithMaxOpenRanges(7), "GapSkipRetention": worker.WithGapSkipRetention(7),
		"Observers": worker.WithObserver(func(observe.Event) {}), "Loggers": worker.WithSlog(nil),
		"Decoder":          worker.WithDecoder(func(_ context.Context, e store.PersistedEvent) (store.PersistedEvent, error) { return e, nil }),
		"BatchMiddleware":  worker.WithBatchMiddleware(func(next worker.BatchFunc) worker.BatchFunc { return next }),
		"HandleMiddleware": worker.WithHandleMiddleware(func(next worker.HandleFunc) worker.HandleFunc { return next }),
		"Names":            worker.WithNames(store.Names{Schema: "x"}),
	}
	config := reflect.TypeFor[worker.Config]()
	for i := range config.NumField() {
		name := config.Field(i).Name
		if set[name] == nil {
			t.Errorf("no option sets %s", name)
			continue
		}
		c := worker.DefaultConfig()
		set[name](&c)
		for j := range config.NumField() {
			before, after := reflect.ValueOf(worker.DefaultConfig()).Field(j), reflect.ValueOf(c).Field(j)
			changed := before.IsZero() != after.IsZero() || before.Comparable() && !before.IsZero() && !before.Equal(after)
			if changed != (i == j) {
				t.Errorf("the option of %s has changed %s: %t", name, config.Field(j).Name, changed)
			}
		}
	}
}

// The options of other libraries set the fields of the same value.
func TestOptionsOfTablesSetNames(t *testing.T) {
	c := worker.DefaultConfig()
	for _, o := range []worker.Option{
		worker.WithNames(store.Names{Schema: "app"}), worker.WithWorkerNodesTable("n"), worker.WithConsumerAssignmentsTable("a"),
		worker.WithConsumerCheckpointsTable("c"), worker.WithConsumerGapSkipsTable("g"), worker.WithLeaderElectionTable("l"),
	} {
		o(&c)
	}
	if want := (store.Names{Schema: "app", WorkerNodes: "n", ConsumerAssignments: "a", ConsumerCheckpoints: "c", ConsumerGapSkips: "g", LeaderElection: "l"}); c.Names != want {
		t.Errorf("the names are %+v, want %+v", c.Names, want)
	}
}

// Several middlewares of one kind compose. The first is the outermost.
func TestMiddlewareComposes(t *testing.T) {
	var calls []string
	mark := func(name string) func(worker.BatchFunc) worker.BatchFunc {
		return func(next worker.BatchFunc) worker.BatchFunc {
			return func(ctx context.Context, b observe.Batch) error {
				calls = append(calls, name)
				return next(ctx, b)
			}
		}
	}
	c := worker.DefaultConfig()
	for _, o := range []worker.Option{worker.WithBatchMiddleware(mark("outer")), worker.WithBatchMiddleware(nil), worker.WithBatchMiddleware(mark("inner"))} {
		o(&c)
	}
	run := c.BatchMiddleware(func(context.Context, observe.Batch) error { return nil })
	if err := run(t.Context(), observe.Batch{}); err != nil || strings.Join(calls, " ") != "outer inner" {
		t.Errorf("%v, %v", calls, err)
	}
}

// New ignores a nil option. Start refuses the other invalid arguments of New.
func TestStartRefusesInvalidArguments(t *testing.T) {
	w := worker.New(nil, nil, nil, nil, worker.WithBatchSize(0), worker.WithLogger(nil))
	err := w.Start(t.Context())
	for _, want := range []string{"db is nil", "eventStore is nil", "consumers is empty", "WithBatchSize: 0 is out of range"} {
		if !errors.Is(err, worker.ErrInvalidConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if s := w.Status().State; s != observe.StateStopped || w.Live() == nil || len(w.Ready(t.Context(), time.Minute)) == 0 {
		t.Errorf("after a start that failed the worker is %s", s)
	}
	if err := w.Start(t.Context()); !errors.Is(err, worker.ErrAlreadyStarted) {
		t.Errorf("a second Start: %v", err)
	}
	if err := worker.NewWaiter((*sql.DB)(nil)).WaitFor(t.Context(), "c", 1); !errors.Is(err, worker.ErrInvalidConfig) {
		t.Errorf("a Waiter without a database: %v", err)
	}
}
