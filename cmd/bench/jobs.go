package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/migrations"
)

// jobSettings are those of the server for the scenarios of package jobs: what
// acknowledges a commit keeps it, and no checkpoint falls into a run.
var jobSettings = map[string]string{
	"fsync": "on", "full_page_writes": "on", "shared_buffers": "1GB", "max_wal_size": "4GB", "checkpoint_timeout": "1h",
}

// jobSlots are how many handlers a measured worker runs at once.
const jobSlots = 100

// jobQueues are the queues that a measured worker serves. Where a scenario has no
// reason for more, only the first has jobs.
var jobQueues = []string{jobs.DefaultQueue, "mail", "reports"}

// jobBacklog is a database with jobs that wait.
type jobBacklog struct {
	*site
	ran int // jobs that workers say they have run
}

// onJobs runs a part of a scenario with a database that has the tables of jobs, on a
// server of its own.
func (l *lab) onJobs(ctx context.Context, part func(l *lab, open func() (*jobBacklog, error)) error) error {
	return l.onOwnServer(ctx, jobSettings, func(l *lab) (err error) {
		var all []*jobBacklog
		err = part(l, func() (*jobBacklog, error) {
			s, err := l.newSite(ctx)
			if err != nil {
				return nil, err
			}
			b := &jobBacklog{site: s}
			all = append(all, b)
			return b, migrations.ApplyJobs(ctx, s.db, nil)
		})
		for _, b := range all {
			err = errors.Join(err, b.drop())
		}
		return err
	})
}

// mix is what the jobs of a backlog are like, as SQL of their number i.
type mix struct{ kind, queue, priority, at string }

// plain are jobs that are due, of one kind, one queue and one priority.
var plain = mix{"'k0'", "'default'", "5", "clock_timestamp()"}

// mixed are jobs of four kinds, three queues and four priorities, and later the same
// that are due in the future, as after a failure or a snooze.
var (
	mixed = mix{"'k' || i % 4", "(ARRAY['default', 'mail', 'reports'])[1 + i % 3]", "1 + 2 * (i / 12 % 4)", "clock_timestamp()"}
	later = mix{mixed.kind, mixed.queue, mixed.priority, "clock_timestamp() + interval '1 hour' + i * interval '1 ms'"}
)

// add makes n jobs wait, in the shape that Enqueue gives them.
func (b *jobBacklog) add(ctx context.Context, n int, m mix) error {
	if n <= 0 {
		return nil
	}
	_, err := b.db.ExecContext(ctx, fmt.Sprintf(`
INSERT INTO jobs (kind, queue, priority, run_at, args)
SELECT %s, %s, %s, %s, jsonb_build_object('num', i) FROM generate_series(1, %d) AS i`, m.kind, m.queue, m.priority, m.at, n))
	return err
}

// ready lets the server do now what it would do in the midst of a run.
func (b *jobBacklog) ready(ctx context.Context) error {
	for _, statement := range []string{`VACUUM (ANALYZE) jobs`, `CHECKPOINT`} {
		if _, err := b.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// jobsRun is what a worker in a process of its own found.
type jobsRun struct {
	Ran      int
	Rate     float64 // jobs a second, from the first tenth on
	CPU      float64 // microseconds of this process for a job
	Server   float64 // microseconds of the server's processes for a job
	RSS      [2]int  // MB, after a tenth and at the end
	Heap     [2]int  // MB that are in use, likewise
	Duration time.Duration
}

func (r jobsRun) text() string {
	return fmt.Sprintf("%s jobs/s, CPU a job %.0f + %.0f µs, RSS %d to %d MB, heap %d to %d MB", grouped(r.Rate), r.CPU, r.Server, r.RSS[0], r.RSS[1], r.Heap[0], r.Heap[1])
}

// run lets a worker run n jobs.
func (b *jobBacklog) run(ctx context.Context, n int) (r jobsRun, err error) {
	return b.runWith(ctx, role{Jobs: n})
}

func (b *jobBacklog) runWith(ctx context.Context, how role) (r jobsRun, err error) {
	how.Task, how.Name = "jobs", "jobs"
	before, errBefore := b.spent(ctx)
	r, err = ask[jobsRun](ctx, b.site, how)
	after, errAfter := b.spent(ctx)
	if errBefore == nil && errAfter == nil {
		r.Server = float64((after.all - before.all).Microseconds()) / float64(how.Jobs)
	}
	b.ran += r.Ran
	return r, err
}

// check returns an error unless each job that has run has run once, and is
// completed.
func (b *jobBacklog) check(ctx context.Context) error {
	var completed, others int
	err := b.db.QueryRowContext(ctx, `
SELECT count(*) FILTER (WHERE state = 'completed' AND attempt = 1 AND code IS NULL), count(*) FILTER (WHERE state <> 'completed' OR attempt <> 1)
FROM jobs_history WHERE kind <> 'old'`).Scan(&completed, &others)
	if err == nil && (completed != b.ran || others > 0) {
		err = fmt.Errorf("handlers ran %d jobs; %d are completed at the first attempt, and %d others have ended", b.ran, completed, others)
	}
	return err
}

// jobsTask runs jobs that do nothing, and measures its own memory and time.
func jobsTask(ctx context.Context, r role) (any, error) {
	config, err := pgx.ParseConfig(r.URL)
	if err != nil {
		return nil, errors.New("the connection string cannot be parsed") // it may hold a password
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	db.SetMaxIdleConns(10)
	tenth, last := int64(max(1, r.Jobs/10)), int64(r.Jobs)
	var ran atomic.Int64
	var found jobsRun
	var began, ended time.Time
	warm, done := make(chan struct{}), make(chan struct{})
	handlers := jobs.NewHandlers()
	handle := func(context.Context, *jobs.Job[jobArgs]) error {
		switch n := ran.Add(1); n {
		case tenth:
			began = time.Now()
			close(warm)
		case last:
			ended = time.Now()
			close(done)
		}
		return nil
	}
	registerAll(handlers, handle)
	options := []jobs.Option{jobs.WithStopAfterJobs(r.Jobs), jobs.WithConcurrency(jobSlots)}
	for _, q := range jobQueues {
		options = append(options, jobs.WithQueue(q, jobSlots))
	}
	if r.Flows {
		options = append(options, flow.Advance())
	}
	w := jobs.NewWorker(db, handlers, options...)
	var failed error
	over := make(chan struct{})
	go func() {
		failed = w.Start(ctx)
		close(over)
	}()
	for i, reached := range []chan struct{}{warm, done} {
		select {
		case <-reached:
		case <-over:
		}
		found.RSS[i], found.Heap[i] = memoryNow()
	}
	<-over
	if failed != nil {
		return nil, failed
	}
	if n := ran.Load(); n < last {
		return nil, fmt.Errorf("the worker has ended after %d jobs of %d", n, last)
	}
	found.Ran = int(ran.Load())
	found.Duration = ended.Sub(began)
	found.Rate = float64(last-tenth) / found.Duration.Seconds()
	found.CPU = float64(ownCPU().Microseconds()) / float64(found.Ran)
	return found, nil
}

// jobArgs are the arguments of all kinds.
type jobArgs struct {
	Num int `json:"num"`
}

func (jobArgs) Kind() string { return "k0" }

type (
	jobArgs1 struct{ jobArgs }
	jobArgs2 struct{ jobArgs }
	jobArgs3 struct{ jobArgs }
)

func (jobArgs1) Kind() string { return "k1" }
func (jobArgs2) Kind() string { return "k2" }
func (jobArgs3) Kind() string { return "k3" }

func registerAll(handlers *jobs.Handlers, handle func(context.Context, *jobs.Job[jobArgs]) error) {
	jobs.Register(handlers, handle)
	jobs.Register(handlers, func(ctx context.Context, _ *jobs.Job[jobArgs1]) error { return handle(ctx, nil) })
	jobs.Register(handlers, func(ctx context.Context, _ *jobs.Job[jobArgs2]) error { return handle(ctx, nil) })
	jobs.Register(handlers, func(ctx context.Context, _ *jobs.Job[jobArgs3]) error { return handle(ctx, nil) })
}

// memoryNow is what this process has, and what of its heap is in use, in MB. The
// garbage is collected before, as that is what stays.
func memoryNow() (rss, heap int) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if kB, ok := strings.CutSuffix(field("/proc/self/status", "VmRSS"), " kB"); ok {
		rss, _ = strconv.Atoi(kB)
	}
	return rss >> 10, int(m.HeapAlloc >> 20)
}

// ownCPU is what this process has used, 0 where that is not known.
func ownCPU() time.Duration {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	t, _ := parseTimes(string(text))
	return t.own
}

// medianRun is the run with the middle rate; the memory is that of the hungriest.
func medianRun(all []jobsRun) jobsRun {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b jobsRun) int { return int(a.Rate - b.Rate) })
	m := sorted[(len(sorted)-1)/2]
	for _, r := range all {
		for i := range m.RSS {
			m.RSS[i], m.Heap[i] = max(m.RSS[i], r.RSS[i]), max(m.Heap[i], r.Heap[i])
		}
	}
	return m
}

// medianRatio is the median of the ratios of the rates, round by round.
func medianRatio(runs, control []jobsRun) float64 {
	var all []float64
	for i := range runs {
		all = append(all, runs[i].Rate/control[i].Rate)
	}
	return median(all)
}

// jobsRows are the rows of runs and of their control, with a goal for the ratio.
func jobsRows(part, control string, runs, controls []jobsRun, least float64) []row {
	c, r, ratio := medianRun(controls), medianRun(runs), medianRatio(runs, controls)
	sum := func(all []jobsRun) (n int) {
		for _, r := range all {
			n += r.Ran
		}
		return n
	}
	return []row{
		{part: "control: " + control, measured: c.text(), counted: sum(controls)},
		{part: part, measured: fmt.Sprintf("%s, %.0f%% of the control", r.text(), 100*ratio), goal: fmt.Sprintf(">= %.0f%%", 100*least), reached: ratio >= least,
			counted: sum(runs), ratio: ratio, least: least},
	}
}

// holdSnapshot keeps vacuum from removing anything that dies until it is let go.
func (b *jobBacklog) holdSnapshot(ctx context.Context) (release func() error, err error) {
	tx, err := b.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `SELECT FROM jobs LIMIT 1`); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx.Rollback, nil
}
