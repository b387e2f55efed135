package metrics

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// Histograms store the measurements of a [Recorder].
type Histograms interface {
	// Open returns a function that records the values of one series. Open is called again only
	// after Drop. The context is the batch's, if there is one: it may have a trace.
	Open(m *Metric, attributes ...string) (record func(ctx context.Context, value float64))
	// Drop forgets a series. The functions that Open returned for it may be called still.
	Drop(m *Metric, attributes ...string)
}

// Sample is called with a value. The attributes are in the order of the Metric's.
type Sample func(m *Metric, value float64, attributes ...string)

// keptFor is how long the series of a consumer stay after it has left this worker, so
// that its last values are collected.
const keptFor = 5 * time.Minute

// most is how many attributes a metric has at most.
const most = 3

// series identifies a series among those of all metrics.
type series struct {
	m      *Metric
	values [most]string
}

func (s series) attributes() []string { return s.values[:len(s.m.Attributes)] }

// Recorder keeps the metrics of a worker of events, a worker of jobs, or both, and of workers
// of tables. Make it with [New]. Any number of goroutines may use it. It has no goroutine of its own.
type Recorder struct {
	histograms Histograms
	depth      depth

	mu       sync.Mutex
	worker   *worker.Worker
	jobs     *jobs.Worker
	tables   map[string]*table.Worker
	counters map[series]float64
	open     map[series]func(ctx context.Context, value float64)
	here     map[string]map[string]bool // consumers and which units of them run here
	left     map[string]time.Time       // when the last unit of a consumer ended
}

// New returns a Recorder that gives its measurements to histograms.
func New(histograms Histograms) *Recorder {
	return &Recorder{
		histograms: histograms,
		tables:     map[string]*table.Worker{},
		counters:   map[series]float64{},
		open:       map[series]func(context.Context, float64){},
		here:       map[string]map[string]bool{},
		left:       map[string]time.Time{},
	}
}

// Watch makes Collect read the Status of a worker. A second call replaces the worker.
func (r *Recorder) Watch(w *worker.Worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.worker = w
}

// WatchJobs makes Collect read the Status of a worker of jobs. A second call replaces the worker.
// While the worker leads, Collect also reads through o, at most once in ten seconds: how many jobs
// per queue are due and for how long, which schedules are overdue or paused, and whether flows are
// advanced. If o is nil, it does not. A role that may not read the schedules has no series of them.
func (r *Recorder) WatchJobs(w *jobs.Worker, o *ops.Jobs) {
	r.mu.Lock()
	r.jobs = w
	r.mu.Unlock()
	r.depth.of(o)
}

// WatchTable makes Collect read the Status of a worker of package jobs/table. name is the attribute
// table, as of TableObserver. A second call with a name replaces the worker.
func (r *Recorder) WatchTable(name string, w *table.Worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tables[name] = w
}

// Collect calls sample with all values but the histograms'.
func (r *Recorder) Collect(ctx context.Context, sample Sample) {
	r.mu.Lock()
	r.forget(time.Now())
	w, j, tables, counted := r.worker, r.jobs, maps.Clone(r.tables), maps.Clone(r.counters)
	r.mu.Unlock()
	for s, value := range counted {
		sample(s.m, value, s.attributes()...)
	}
	if w != nil {
		sampleWorker(w.Status(), time.Now(), sample)
	}
	if j != nil {
		status := j.Status()
		sampleJobs(status, time.Now(), sample)
		if status.State == observe.StateRunning && status.Leader {
			r.depth.sample(ctx, sample)
		}
	}
	for name, t := range tables {
		if t != nil {
			sampleTable(name, t.Status(), time.Now(), sample)
		}
	}
}

// count adds to a counter.
func (r *Recorder) count(m *Metric, n float64, attributes ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters[seriesOf(m, attributes)] += n
}

// record gives a value to a histogram.
func (r *Recorder) record(ctx context.Context, m *Metric, value time.Duration, attributes ...string) {
	r.histogram(m, attributes...)(ctx, max(value, 0).Seconds())
}

// histogram returns the function that records the values of a series.
func (r *Recorder) histogram(m *Metric, attributes ...string) func(ctx context.Context, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := seriesOf(m, attributes)
	record, is := r.open[s]
	if !is {
		record = r.histograms.Open(m, attributes...)
		r.open[s] = record
	}
	return record
}

func seriesOf(m *Metric, attributes []string) (s series) {
	s.m = m
	copy(s.values[:], attributes)
	return s
}

// came records that a unit runs here, and creates its counters at 0. A counter that begins at 1
// would show no increase.
func (r *Recorder) came(unit string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	consumer, _ := split(unit)
	delete(r.left, consumer)
	if r.here[consumer] == nil {
		r.here[consumer] = map[string]bool{}
	}
	r.here[consumer][unit] = true
	for m, of := range map[*Metric][]string{
		consumerEvents: {"false", "true"}, consumerBatches: {outcomeCommitted, outcomeFailed, outcomeOvertaken}, deadLettersAdded: {""},
		consumerRetries: {causeHandler, causeConflict, causeDatabase, causeKey},
		consumerSkipped: {string(observe.SkipVoid), string(observe.SkipOpen), string(observe.SkipLate)},
	} {
		for _, value := range of {
			r.counters[seriesOf(m, []string{consumer, value})] += 0
		}
	}
}

// went records that a unit does not run here any more.
func (r *Recorder) went(unit string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	consumer, _ := split(unit)
	if delete(r.here[consumer], unit); len(r.here[consumer]) == 0 {
		delete(r.here, consumer)
		r.left[consumer] = time.Now()
	}
}

// forget drops the series of consumers that left long ago.
func (r *Recorder) forget(now time.Time) {
	for consumer, at := range r.left {
		if now.Sub(at) < keptFor {
			continue
		}
		delete(r.left, consumer)
		gone := func(s series) bool {
			return slices.Equal(s.m.Attributes[:min(1, len(s.m.Attributes))], byConsumer) && s.values[0] == consumer
		}
		maps.DeleteFunc(r.counters, func(s series, _ float64) bool { return gone(s) })
		maps.DeleteFunc(r.open, func(s series, _ func(context.Context, float64)) bool {
			if !gone(s) {
				return false
			}
			r.histograms.Drop(s.m, s.attributes()...)
			return true
		})
	}
}

// split takes the name of a unit apart.
func split(unit string) (consumer, partition string) {
	consumer, partition, _ = strings.Cut(unit, "#")
	return consumer, partition
}
