package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/observe/health"
	"github.com/pgfrontier/worker/observe/metrics"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// asDeployed makes a process of this test program a worker of a deployment, which its value, a
// build, describes.
const asDeployed = "PGFRONTIER_AS_DEPLOYED"

// build is what a process of a deployment runs.
type build struct {
	URL       string
	Consumers []string            // of events; none: jobs
	Types     map[string][]string // that consumers select; none: all
	Policy    worker.FailurePolicy
	Queues    []string
	Schedules []string
	Advances  bool // flows
	Mended    bool // its handlers fail at nothing
}

const (
	deployedHeartbeat = 500 * time.Millisecond
	deployedDead      = 5 * time.Second // after which a worker counts as dead
	deployedLate      = 5 * time.Second // what late is, to probes and to the doctor
)

// deployed runs a worker until SIGTERM, and serves its probes and metrics.
func deployed(text string) {
	if err := runDeployed(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runDeployed(text string) error {
	var b build
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return err
	}
	db, err := sql.Open("pgx", b.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxIdleConns(10)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	recorder := metrics.New(unmeasured{})
	start := b.events
	if len(b.Consumers) == 0 {
		start = b.jobs
	}
	run, stop, w := start(db, recorder)
	mux := http.NewServeMux()
	mux.Handle("/livez", health.Live(w))
	mux.Handle("/readyz", health.Ready(w, deployedLate))
	mux.HandleFunc("/metrics", func(rw http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(rw).Encode(scraped(r.Context(), recorder))
	})
	go func() { _ = http.Serve(listener, mux) }()
	fmt.Printf("serves %s\n", listener.Addr())
	go func() {
		<-ctx.Done()
		stop()
	}()
	return run(ctx)
}

// unmeasured is for histograms: no alert asks about them.
type unmeasured struct{}

func (unmeasured) Open(*metrics.Metric, ...string) func(context.Context, float64) {
	return func(context.Context, float64) {}
}
func (unmeasured) Drop(*metrics.Metric, ...string) {}

// series is a value that Prometheus would scrape. About are its attributes but for the name of
// a metric, by commas.
type series struct {
	Metric, About string
	Value         float64
}

func scraped(ctx context.Context, r *metrics.Recorder) (all []series) {
	r.Collect(ctx, func(m *metrics.Metric, value float64, attributes ...string) {
		about := strings.Join(slices.DeleteFunc(slices.Clone(attributes), func(s string) bool { return s == "" }), ",")
		all = append(all, series{m.Prometheus(), about, value})
	})
	return all
}

// running is a worker's Start, its Stop, and what its probes ask.
type running func(ctx context.Context) error

func (b build) events(db *sql.DB, r *metrics.Recorder) (running, func(), health.Worker) {
	var all []consumer.Consumer
	for _, name := range b.Consumers {
		c := shopper{name, b.Types[name], b.Mended}
		if name == partitioned {
			all = append(all, inParts{c})
			continue
		}
		all = append(all, c)
	}
	w := worker.New(db, newStore(), all, worker.WithHeartbeatInterval(deployedHeartbeat), worker.WithHeartbeatTimeout(deployedDead),
		worker.WithRebalanceInterval(time.Second), worker.WithBatchSize(2000), worker.WithBatchTimeout(2*time.Second), worker.WithShutdownTimeout(2*time.Second),
		worker.WithFailurePolicy(b.Policy), worker.WithMaxConsecutiveFailures(2), worker.WithPollInterval(50*time.Millisecond), worker.WithMaxPollInterval(time.Second),
		worker.WithObserver(r.Observer()), worker.WithStaleGapThreshold(time.Hour))
	r.Watch(w)
	return w.Start, w.Stop, w
}

// partitioned is the consumer that runs in partitions.
const partitioned = "stock"

// shopper handles events with nothing, but fails, or hangs, at an aggregate made for it.
type shopper struct {
	name   string
	types  []string
	mended bool
}

func (s shopper) Name() string             { return s.name }
func (s shopper) AggregateTypes() []string { return s.types }

func (s shopper) Handle(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	switch {
	case s.mended:
	case e.AggregateID == "poison "+s.name:
		return errors.New("the order has no customer")
	case e.AggregateID == "hang "+s.name:
		select {}
	}
	return nil
}

type inParts struct{ shopper }

func (inParts) Partitions() consumer.Partitions { return consumer.Partitions{Count: 4} }

// errand is a job, and the steps of the flow "order" have two others.
type (
	errand struct{ Do string }
	charge struct{ Do string }
	ship   struct{ Do string }
)

func (errand) Kind() string { return "errand" }
func (charge) Kind() string { return "charge" }
func (ship) Kind() string   { return "ship" }

func orderFlow() (f *flow.Flow[string], first *flow.Step[charge, flow.None], second *flow.Step[ship, flow.None]) {
	f = flow.New[string]("order")
	options := flow.Enqueue(jobs.Queue("mail"))
	first = flow.Add[flow.None](f, "charge", func(do string) charge { return charge{do} }, options)
	second = flow.Add[flow.None](f, "ship", func(do string) ship { return ship{do} }, flow.After(first), options)
	return f, first, second
}

func (b build) jobs(db *sql.DB, r *metrics.Recorder) (running, func(), health.Worker) {
	do := func(what string) error {
		switch {
		case b.Mended:
		case what == "fail":
			return errors.New("no such mailbox")
		case what == "hang":
			select {}
		}
		return nil
	}
	handlers := jobs.NewHandlers()
	once := jobs.MaxAttempts(1)
	jobs.Register(handlers, func(_ context.Context, j *jobs.Job[errand]) error { return do(j.Args.Do) }, once, jobs.Timeout(time.Second))
	_, first, second := orderFlow()
	flow.Handle(handlers, first, func(_ context.Context, j *jobs.Job[charge]) (flow.None, error) { return flow.None{}, do(j.Args.Do) }, once)
	flow.Handle(handlers, second, func(context.Context, *jobs.Job[ship]) (flow.None, error) { return flow.None{}, nil }, once)
	options := []jobs.Option{jobs.WithHeartbeatInterval(deployedHeartbeat), jobs.WithHeartbeatTimeout(deployedDead), jobs.WithShutdownTimeout(2 * time.Second),
		jobs.WithPollInterval(50 * time.Millisecond), jobs.WithMaxPollInterval(time.Second), jobs.WithObserver(r.Observer())}
	for _, name := range b.Queues {
		options = append(options, jobs.WithQueue(name, 2))
	}
	if b.Advances {
		options = append(options, flow.Advance())
	}
	w := jobs.NewWorker(db, handlers, options...)
	o, err := ops.NewJobs(db)
	r.WatchJobs(w, o)
	return func(ctx context.Context) error {
		if err != nil {
			return err
		}
		return b.withSchedules(ctx, db, r, w.Start)
	}, w.Stop, w
}

// withSchedules runs a worker of jobs, and the schedules beside it.
func (b build) withSchedules(ctx context.Context, db *sql.DB, r *metrics.Recorder, start running) error {
	var all []schedule.Schedule
	for _, name := range b.Schedules {
		all = append(all, schedule.Job(name, schedule.Every(time.Second), func(time.Time) jobs.Args { return errand{} }, schedule.Enqueue(jobs.Queue("bulk"))))
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	if len(all) > 0 {
		wait.Go(func() {
			if err := schedule.New(db, jobs.NewClient(db), all...).WithObserver(r.Observer()).Start(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
	return start(context.WithoutCancel(ctx))
}
