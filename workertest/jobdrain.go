package workertest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobdryrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// Drain runs a worker until no job for which h has a handler is due or running. This includes jobs
// that are enqueued meanwhile. Then it stops the worker. When Drain returns, no goroutine of the
// worker is running.
//
// Jobs of all queues run, ten per queue at once, unless opts have WithQueue. Jobs of other kinds do
// not run, nor do jobs that are due later. The latter are enqueued with At or In, snoozed, or wait
// for another attempt. A handler registered with jobs.Retry(jobs.Fixed(0)) is retried at once. To
// run a job before its time, set run_at in the table.
//
// Drain returns the errors of the jobs that have failed, or that wait for another attempt. It
// returns nil if there are none. A job that failed at first and then completed is no failure.
//
// opts are applied after Drain's own options, by which the worker polls often and a stop waits for a
// second. Give ctx a deadline. When ctx ends, the error names the jobs that Drain awaited.
func Drain(ctx context.Context, db *sql.DB, h *jobs.Handlers, opts ...jobs.Option) error {
	if db == nil || h == nil {
		return errors.New("workertest: db or handlers are nil")
	}
	t, err := jobTables(opts)
	if err != nil {
		return fmt.Errorf("workertest: %w", err)
	}
	d := &drain{db: db, handlers: h, tables: t, opts: opts, named: jobdryrun.Of(opts).Queues, failed: map[int64]error{}}
	for { // a job may be enqueued into a new queue
		queues, err := d.queues(ctx)
		if err == nil && len(queues) > 0 {
			err = d.run(ctx, queues)
		}
		if err != nil {
			return fmt.Errorf("workertest: %w", errtext.Of(err))
		}
		if len(queues) == 0 || len(d.named) > 0 {
			return d.failures(ctx)
		}
	}
}

// drain is one call of Drain.
type drain struct {
	db       *sql.DB
	handlers *jobs.Handlers
	tables   tables.Jobs
	opts     []jobs.Option
	named    []string // queues

	mu     sync.Mutex
	failed map[int64]error // by job
}

// done records the end of a run.
func (d *drain) done(r observe.JobDone) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.failed, r.ID)
	if r.Err != nil {
		d.failed[r.ID] = fmt.Errorf("job %d of kind %s: %w", r.ID, errtext.Value(r.Kind), r.Err)
	}
}

// run runs a worker of these queues until no job is due there.
func (d *drain) run(ctx context.Context, queues []string) error {
	opts := []jobs.Option{jobs.WithPollInterval(pollInterval), jobs.WithShutdownTimeout(time.Second)}
	if len(d.named) == 0 {
		for _, q := range queues {
			opts = append(opts, jobs.WithQueue(q, 10))
		}
	}
	opts = append(opts, d.opts...)
	w := jobs.NewWorker(d.db, d.handlers, append(opts, jobs.WithObserver(observe.On(d.done)))...)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	for awaited := "that the worker starts"; ; {
		select {
		case err := <-ended:
			if err == nil {
				err = context.Cause(ctx)
			}
			if err == nil {
				return fmt.Errorf("awaited %s, but the worker was stopped", awaited)
			}
			return fmt.Errorf("awaited %s: %w", awaited, err)
		case <-time.After(pollInterval):
		}
		if w.Status().State != observe.StateRunning {
			continue
		}
		missing, err := d.missing(ctx, queues)
		if err != nil {
			continue // the worker's status has the error
		}
		if missing == "" {
			w.Stop()
			return <-ended
		}
		awaited = missing + d.condition(w.Status())
	}
}

// query reads the due or running jobs of the kinds with handlers.
func (d *drain) query(ctx context.Context, columns, more string, args ...any) ([][3]string, error) {
	kinds, err := json.Marshal(jobdryrun.Kinds(d.handlers))
	if err != nil {
		return nil, err
	}
	return pgdriver.QueryAll(ctx, d.db, func(r *sql.Rows) (row [3]string, err error) {
		return row, r.Scan(&row[0], &row[1], &row[2])
	}, `SELECT `+columns+` FROM `+d.tables.Jobs.SQL()+` AS j WHERE kind = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))
		AND (state = 'running' OR state = 'available' AND run_at <= statement_timestamp() AND (good_until IS NULL OR good_until > statement_timestamp()))`+more,
		append([]any{string(kinds)}, args...)...)
}

// queues returns the named queues, or those with due or running jobs.
func (d *drain) queues(ctx context.Context) (all []string, err error) {
	if len(d.named) > 0 {
		return d.named, nil
	}
	rows, err := d.query(ctx, `DISTINCT queue, '', ''`, ``)
	for _, r := range rows {
		all = append(all, r[0])
	}
	return all, err
}

// missing describes the due or running jobs of these queues. It is empty if there are none.
func (d *drain) missing(ctx context.Context, queues []string) (string, error) {
	list, err := json.Marshal(queues)
	if err != nil {
		return "", err
	}
	rows, err := d.query(ctx, `id::text, kind, CASE WHEN state = 'running' THEN 'runs' ELSE 'is due' END || ' in queue ' || quote_literal(queue) || coalesce(
			(SELECT ', which is paused' FROM `+d.tables.Queues.SQL()+` AS q WHERE q.name IN (j.queue, '*') AND q.paused_at IS NOT NULL LIMIT 1), '')`,
		` AND queue = ANY (ARRAY(SELECT jsonb_array_elements_text($2::jsonb))) ORDER BY id LIMIT 4`, string(list))
	if err != nil || len(rows) == 0 {
		return "", err
	}
	var what []string
	for i, r := range rows {
		if i == 3 {
			what = append(what, "and more")
			break
		}
		what = append(what, fmt.Sprintf("the end of job %s of kind %s, which %s", r[0], errtext.Value(r[1]), r[2]))
	}
	return strings.Join(what, ", "), nil
}

// condition describes why the worker makes no progress.
func (d *drain) condition(s jobs.Status) (text string) {
	for _, q := range s.Queues {
		if q.LastError != nil {
			text += fmt.Sprintf("; queue %s: %v", errtext.Value(q.Name), q.LastError)
		}
	}
	if s.SettleError != nil {
		text += fmt.Sprintf("; ends cannot be stored: %v", s.SettleError)
	}
	return text
}

// failures returns the errors of jobs that have failed, or wait for another attempt. Snoozed
// and cancelled jobs have not failed.
func (d *drain) failures(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := make([]int64, 0, len(d.failed))
	for id := range d.failed {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	client := jobs.NewClient(d.db, jobs.WithNames(store.Names{Jobs: d.tables.Jobs.String()}))
	var all []error
	for _, id := range ids {
		info, err := client.Get(ctx, id)
		if err != nil {
			return fmt.Errorf("workertest: %w", err)
		}
		again := info.State == jobs.StateAvailable && len(info.Attempts) > 0 && info.Attempts[0].Outcome == "error"
		if again || info.State == jobs.StateFailed {
			all = append(all, d.failed[id])
		}
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("workertest: %w", errtext.Join(all...))
}
