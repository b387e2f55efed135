package metrics

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// noted are histograms that note which series are open.
type noted map[string]bool

func (n noted) Open(m *Metric, attributes ...string) func(context.Context, float64) {
	key := fmt.Sprint(m.Name, attributes)
	if n[key] {
		panic(key + " is opened twice")
	}
	n[key] = true
	return func(_ context.Context, value float64) {
		if value < 0 {
			panic(key + " is given a negative value")
		}
	}
}

func (n noted) Drop(m *Metric, attributes ...string) { delete(n, fmt.Sprint(m.Name, attributes)) }

func values(r *Recorder) map[string]float64 {
	all := map[string]float64{}
	r.Collect(context.Background(), func(m *Metric, value float64, attributes ...string) {
		all[fmt.Sprint(strings.TrimPrefix(m.Name, "pgfrontier."), attributes)] = value
	})
	return all
}

// What a hook tells is counted under what it was.
func TestHooks(t *testing.T) {
	n := noted{}
	r := New(n)
	o := r.Observer()
	o(observe.BatchDone{Batch: observe.Batch{Consumer: "a#0-7ff", Events: 7, Late: 3}})
	o(observe.BatchDone{Batch: observe.Batch{Consumer: "a#800-fff", Events: 5, Err: errors.New("no")}})
	o(observe.BatchDone{Batch: observe.Batch{Consumer: "a", Events: 5, Overtaken: true}})
	for _, retry := range []observe.Retrying{
		{Condition: observe.ConditionBatch, ByHandler: true}, {Condition: observe.ConditionBatch}, {Condition: observe.ConditionBatch},
		{Condition: observe.ConditionDatabase}, {Condition: observe.ConditionKey},
	} {
		retry.Consumer = "a#0-7ff"
		o(retry)
	}
	o(observe.Skipped{Consumer: "a#0-7ff", State: observe.SkipLate, Missing: 4, Range: store.Range{First: 1, Last: 9}})
	o(observe.DeadLettered{DeadLetter: observe.DeadLetter{Consumer: "a#0-7ff"}})
	o(observe.Woken{Source: observe.WakeupEvents})
	o(observe.JobsClaimed{Queue: "q", Jobs: 3})
	o(observe.StatementFailed{Condition: observe.ConditionQueue, Queue: "q"})
	o(observe.FlowRunEnded{Flow: "f", State: string(jobs.StateFailed)})
	h := observe.Job{Queue: "q", Kind: "k"}
	o(observe.JobLost{Job: h})
	for _, d := range []observe.JobDone{{State: string(jobs.StateCompleted)}, {State: string(jobs.StateFailed), Failed: true}, {State: string(jobs.StateAvailable), Failed: true}, {State: string(jobs.StateAvailable)}, {State: string(jobs.StateCancelled)}} {
		d.Job, d.Waited = h, -time.Second // by two clocks
		o(d)
	}
	want := map[string]float64{
		"consumer.batches[a committed]": 1, "consumer.batches[a failed]": 1, "consumer.batches[a overtaken]": 1,
		"consumer.events[a false]": 4, "consumer.events[a true]": 3,
		"consumer.retries[a handler]": 1, "consumer.retries[a conflict]": 2, "consumer.retries[a database]": 1, "consumer.retries[a key]": 1,
		"consumer.positions.skipped[a late]": 4, "letters.added[a]": 1, "worker.wakeups[events]": 1,
		"jobs.claimed[q]": 3, "jobs.claim.failures[q]": 1, "jobs.lost[q k]": 1, "jobs.flow.runs[f failed]": 1,
		"jobs.done[q k completed]": 1, "jobs.done[q k failed]": 1, "jobs.done[q k retried]": 1, "jobs.done[q k snoozed]": 1, "jobs.done[q k cancelled]": 1,
	}
	if got := values(r); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted %v\nwant %v", got, want)
	}
	if len(n) != 4+4 {
		t.Errorf("the histograms are %v", n)
	}
}

// The series of a consumer end some time after its last unit has gone elsewhere, and begin at 0 if
// it comes back. Those of others stay.
func TestSeriesOfConsumersThatLeft(t *testing.T) {
	n := noted{}
	r := New(n)
	o := r.Observer()
	for _, unit := range []string{"a#0-7ff", "a#800-fff", "b"} {
		o(observe.ConsumerStarted{Consumer: unit})
		o(observe.BatchDone{Batch: observe.Batch{Consumer: unit, Events: 1}})
	}
	o(observe.Woken{Source: "a"})
	o(observe.JobsClaimed{Queue: "a", Jobs: 1})
	later := func(d time.Duration) map[string]float64 {
		r.forget(time.Now().Add(d))
		return values(r)
	}
	has := func(all map[string]float64, consumer string) bool {
		_, is := all["consumer.events["+consumer+" false]"]
		return is
	}
	o(observe.ConsumerStopped{Consumer: "a#0-7ff"})
	if all := later(time.Hour); !has(all, "a") || all["consumer.events[a false]"] != 2 {
		t.Errorf("while a part runs here: %v", all)
	}
	o(observe.ConsumerStopped{Consumer: "a#800-fff"})
	if all := later(keptFor - time.Minute); !has(all, "a") {
		t.Errorf("soon after its end: %v", all)
	}
	all := later(keptFor + time.Second)
	if has(all, "a") || !has(all, "b") || all["worker.wakeups[a]"] != 1 || all["jobs.claimed[a]"] != 1 {
		t.Errorf("long after its end: %v", all)
	}
	for series := range n {
		if strings.Contains(series, "[a") && !strings.Contains(series, ".jobs.") { // of a queue
			t.Errorf("the histogram %s is still there", series)
		}
	}
	if len(n) != 4+1 {
		t.Errorf("the histograms are %v", n)
	}
	o(observe.ConsumerStarted{Consumer: "a"})
	o(observe.BatchDone{Batch: observe.Batch{Consumer: "a", Events: 1}})
	o(observe.ConsumerStopped{Consumer: "a"})
	o(observe.ConsumerStarted{Consumer: "a"})
	o(observe.ConsumerStopped{Consumer: "b"})
	r.left["b"] = time.Now().Add(-keptFor)
	if all := values(r); has(all, "b") {
		t.Errorf("a collection tells of one that left long ago: %v", all)
	}
	if all := later(time.Hour); all["consumer.events[a false]"] != 1 || all["consumer.batches[a overtaken]"] != 0 {
		t.Errorf("when it is back: %v", all)
	}
}

// Of a consumer whose progress is not known here, nothing is told.
func TestUnknownProgress(t *testing.T) {
	lag, age := int64(4), 3*time.Second
	s := worker.Status{State: observe.StateRunning, Consumers: []observe.ConsumerStatus{
		{Name: "elsewhere", Consumer: "elsewhere", Lag: &lag},
		{Name: "soon", Consumer: "soon", Assigned: true},
		{Name: "c#0-7ff", Consumer: "c", Partition: "0-7ff", Assigned: true, Position: 9, Lag: &lag, OldestAge: &age},
	}}
	var got []string
	sampleWorker(s, time.Now(), func(m *Metric, value float64, attributes ...string) {
		if len(attributes) > 1 {
			got = append(got, fmt.Sprint(strings.TrimPrefix(m.Name, "pgfrontier."), attributes, " ", value))
		}
	})
	want := []string{"consumer.position[c 0-7ff] 9", "consumer.lag[c 0-7ff] 4", "consumer.oldest.age[c 0-7ff] 3", "consumer.paused[c 0-7ff] 0", "letters.open[c 0-7ff] 0", "open_ranges[c 0-7ff] 0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// A worker that reads the log, and hangs, or that does not run, is not up.
func TestUp(t *testing.T) {
	for _, test := range []struct {
		s            worker.Status
		up, frontier float64 // -1: none
	}{
		{worker.Status{State: observe.StateRunning}, 1, 1},
		{worker.Status{State: observe.StateDraining}, 1, 1},
		{worker.Status{State: observe.StateRunning, LoopError: errors.New("hangs")}, 1, 0},
		{worker.Status{State: observe.StateRunning, FrontierError: errors.New("away")}, 1, 0},
		{worker.Status{State: observe.StateStarting}, 0, -1},
		{worker.Status{State: observe.StateStopped}, 0, -1},
	} {
		up, frontier := -1.0, -1.0
		sampleWorker(test.s, time.Now(), func(m *Metric, value float64, _ ...string) {
			switch m {
			case workerUp:
				up = value
			case frontierUp:
				frontier = value
			}
		})
		if up != test.up || frontier != test.frontier {
			t.Errorf("%+v: %v, %v", test, up, frontier)
		}
	}
}

// A queue is not up while no jobs can be claimed from it. It is up if only some jobs cannot be. Slots
// that handlers keep which were given up are lost.
func TestQueueUp(t *testing.T) {
	got := map[string]float64{}
	sampleJobs(jobs.Status{State: observe.StateRunning, Queues: []jobs.QueueStatus{{Name: "a", Overdue: 2}, {Name: "b", LastError: errors.New("away")}, {Name: "c", LastError: errors.New("job 7"), Refused: 1}}}, time.Now(), func(m *Metric, value float64, attributes ...string) {
		if m == jobsQueueUp || m == jobsLostSlots {
			got[attributes[0]+" "+m.Name] = value
		}
	})
	if fmt.Sprint(got) != "map[a pgfrontier.jobs.queue.slots.lost:2 a pgfrontier.jobs.queue.up:1 b pgfrontier.jobs.queue.slots.lost:0 b pgfrontier.jobs.queue.up:0 c pgfrontier.jobs.queue.slots.lost:0 c pgfrontier.jobs.queue.up:1]" {
		t.Errorf("the gauges are %v", got)
	}
}

// Clocks that differ make no negative delivery, and a batch that failed makes none.
func TestDeliveries(t *testing.T) {
	n := noted{}
	r := New(n)
	deliver := func(err error) {
		batch := r.Batch(func(ctx context.Context, _ observe.Batch) error {
			handle := r.Handle(func(context.Context, *sql.Tx, []store.PersistedEvent) error { return nil })
			if failed := handle(ctx, nil, []store.PersistedEvent{{CreatedAt: time.Now().Add(time.Hour)}}); failed != nil {
				t.Error(failed)
			}
			return err
		})
		if got := batch(context.Background(), observe.Batch{Consumer: "a#0-7ff", Events: 1}); got != err {
			t.Errorf("the batch returned %v", got)
		}
	}
	if deliver(errors.New("no")); len(n) > 0 {
		t.Errorf("a batch that failed delivers: %v", n)
	}
	if deliver(nil); !n["pgfrontier.delivery.duration[a]"] {
		t.Errorf("there is %v", n)
	}
	if err := r.Handle(func(context.Context, *sql.Tx, []store.PersistedEvent) error { return nil })(context.Background(), nil, nil); err != nil {
		t.Error(err)
	}
}

// measured are histograms that keep the latest value of each series.
type measured map[string]float64

func (all measured) Open(m *Metric, attributes ...string) func(context.Context, float64) {
	key := fmt.Sprint(strings.TrimPrefix(m.Name, "pgfrontier."), attributes)
	return func(_ context.Context, value float64) { all[key] = value }
}

func (measured) Drop(*Metric, ...string) {}

// Each duration is recorded in seconds, as that of what took it.
func TestDurations(t *testing.T) {
	got := measured{}
	r := New(got)
	r.Observer()(observe.BatchDone{Batch: observe.Batch{Consumer: "a#0-7ff", Events: 1, Read: 1500 * time.Millisecond, Guard: 2 * time.Second, Handle: 3 * time.Second, Commit: 4 * time.Second}})
	r.Observer()(observe.JobDone{Job: observe.Job{Queue: "q", Kind: "k"}, State: string(jobs.StateCompleted), Took: 5 * time.Second, Waited: 6 * time.Second})
	r.Observer()(observe.FlowRunEnded{Flow: "f", State: string(jobs.StateCompleted), Took: 7 * time.Second})
	want := measured{
		"batch.duration[a read]": 1.5, "batch.duration[a guard]": 2, "batch.duration[a handle]": 3, "batch.duration[a commit]": 4,
		"jobs.duration[q k]": 5, "jobs.wait.duration[q k]": 6, "jobs.flow.duration[f]": 7,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("recorded %v\nwant %v", got, want)
	}
	deliver := r.Batch(func(ctx context.Context, _ observe.Batch) error {
		return r.Handle(func(context.Context, *sql.Tx, []store.PersistedEvent) error { return nil })(ctx, nil, []store.PersistedEvent{{CreatedAt: time.Now().Add(-time.Hour)}})
	})
	if err := deliver(context.Background(), observe.Batch{Consumer: "a", Events: 1}); err != nil {
		t.Fatal(err)
	}
	if age := got["delivery.duration[a]"]; age < 3_600 || age > 7_200 {
		t.Errorf("an event of an hour ago was delivered after %v", age)
	}
}

// No metric has an attribute of a set without bounds, or a name that cannot be told from another.
func TestAll(t *testing.T) {
	bounded := []string{"consumer", "partition", "queue", "kind", "build", "source", "state", "late", "outcome", "cause", "part", "schedule", "flow", "table", "what"}
	names := map[string]bool{}
	for _, m := range All() {
		if names[m.Name] || m.Help == "" || len(m.Attributes) > most || (m.Kind == Histogram) != (len(m.Bounds) > 0) || !slices.IsSorted(m.Bounds) {
			t.Errorf("%+v", m)
		}
		names[m.Name] = true
		for _, a := range m.Attributes {
			if !slices.Contains(bounded, a) {
				t.Errorf("%s has the attribute %s", m.Name, a)
			}
		}
	}
}

// A worker of a table is up if it works for most rows. Its slots are free, running, unsettled or lost.
func TestTables(t *testing.T) {
	now, bad := time.Now(), errors.New("no")
	s := table.Status{State: observe.StateRunning, NumHandlers: 10, Running: 7, Overdue: 2, Unsettled: 1, ClaimError: bad, HeartbeatError: bad, ResetError: bad, LoopError: bad}
	s.Refused.Claim, s.LastSuccess.Claim = 3, now.Add(-time.Minute)
	got := map[string]float64{}
	sample := func(m *Metric, value float64, attributes ...string) {
		got[fmt.Sprint(strings.TrimPrefix(m.Name, "pgfrontier.jobs.table."), attributes)] = value
	}
	sampleTable("t", s, now, sample)
	want := map[string]float64{
		"up[t worker]": 1, "up[t loops]": 0, "up[t claim]": 1, "up[t heartbeat]": 0, "up[t settle]": 1, "up[t reset]": 0,
		"refused[t claim]": 3, "refused[t heartbeat]": 0, "refused[t settle]": 0, "refused[t reset]": 0, "success.age[t claim]": 60,
		"slots[t free]": 3, "slots[t running]": 4, "slots[t unsettled]": 1, "slots[t lost]": 2,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	clear(got)
	sampleTable("t", table.Status{State: observe.StateStarting}, now, sample)
	if fmt.Sprint(got) != "map[up[t worker]:0]" {
		t.Errorf("while it starts: %v", got)
	}
}

// Each table of a program has its own series. A second worker of a name replaces the first.
func TestWatchTable(t *testing.T) {
	r := New(noted{})
	fresh := func() *table.Worker {
		return table.NewWorker(table.NewStore(nil, table.Options[int]{}), table.Handler[int]{}, table.WorkerOptions{})
	}
	r.WatchTable("a", fresh())
	r.WatchTable("b", fresh())
	r.WatchTable("b", fresh())
	r.WatchTable("none", nil)
	if got, want := fmt.Sprint(values(r)), "map[jobs.table.up[a worker]:0 jobs.table.up[b worker]:0]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
