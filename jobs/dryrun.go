package jobs

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobdryrun"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/runtime"
)

func init() {
	jobdryrun.Run = func(ctx context.Context, handlers any, given []jobdryrun.Given, db jobdryrun.Database) ([]jobdryrun.Outcome, error) {
		return handlers.(*Handlers).dryRun(ctx, given, db)
	}
	jobdryrun.Kinds = func(handlers any) []string { return handlers.(*Handlers).kinds() }
	jobdryrun.Of = settingsOf
}

func settingsOf(options any) (s jobdryrun.Settings) {
	var c config
	var client clientConfig
	switch all := options.(type) {
	case []Option:
		for _, o := range all {
			if o != nil {
				o.apply(&c)
			}
		}
	case []ClientOption:
		for _, o := range all {
			if o != nil {
				o.applyClient(&client)
			}
		}
	}
	s.Names = cmp.Or(c.names, client.names)
	for _, q := range c.queues {
		s.Queues = append(s.Queues, q.name)
	}
	return s
}

// dryRun is the state of a run without a worker. Package workertest calls the handler, and no table
// contains the job.
type dryRun struct {
	mu   sync.Mutex
	logs []json.RawMessage
	txid string // of the transaction that CompleteTx was given
}

func (t *dryRun) log(entry json.RawMessage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.logs = append(t.logs, entry)
}

func (t *dryRun) completeIn(ctx context.Context, tx *sql.Tx) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return tx.QueryRowContext(ctx, `SELECT txid_current()::text`).Scan(&t.txid)
}

// defaultPriority is the priority that the table gives to a job without one.
const defaultPriority = 5

// errUncommitted is the failure of a handler that has called CompleteTx and has not committed.
var errUncommitted = errors.New("the handler called CompleteTx and returned nil, but has not committed its transaction")

// dryRun calls a handler once with the given jobs, and decides their outcomes as a worker does. It
// does not split a batch that fails.
func (h *Handlers) dryRun(ctx context.Context, given []jobdryrun.Given, db jobdryrun.Database) (all []jobdryrun.Outcome, err error) {
	runs, err := h.dryRuns(given)
	if err != nil || len(runs) == 0 {
		return nil, err
	}
	handler := runs[0].handler
	jobs := make([]any, len(runs))
	for i, r := range runs {
		if jobs[i], err = handler.decode(r); err != nil {
			return nil, fmt.Errorf("the arguments are no %s: %w", handler.kind, err)
		}
	}
	var tx *sql.Tx
	check := func(err error) error { return err }
	if handler.tx {
		if ctx, tx, check, err = db.Begin(ctx); err != nil {
			return nil, err
		}
	}
	bounded, stop := jobrun.Bounded(ctx, handler.timeout, ErrTimeout)
	defer stop(nil)
	err = check(runtime.Recovered(func() error { return handler.call(bounded, tx, jobs) }))
	if errors.Is(err, ErrTxEnded) {
		err = coded(CodeTxEnded, true, err, "%v", err)
	}
	if err != nil && errors.Is(jobrun.CauseOf(bounded), ErrTimeout) && !isVerdict(err) {
		err = (&call{h: handler}).timeout(err)
	}
	for i, r := range runs {
		o, err := r.dryRunOutcome(ctx, given[i].Failures, err, db)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// dryRuns returns the runs of the given jobs, which must be of one kind.
func (h *Handlers) dryRuns(given []jobdryrun.Given) (runs []*run, err error) {
	if err := errtext.Join(h.errs...); err != nil {
		return nil, err
	}
	now := time.Now()
	for i, g := range given {
		spec, err := g.Entry.(EnqueueParams).spec()
		if err != nil {
			return nil, err
		}
		handler := h.of[spec.job.Kind]
		switch {
		case handler == nil:
			return nil, fmt.Errorf("kind %s has no handler", errtext.Value(spec.job.Kind))
		case i > 0 && handler != runs[0].handler:
			return nil, fmt.Errorf("kinds %s and %s have a handler each: give it jobs of one kind", errtext.Value(runs[0].handler.kind), errtext.Value(handler.kind))
		case i >= handler.batch:
			return nil, fmt.Errorf("the handler of kind %s takes %d jobs at once, it is given %d", errtext.Value(handler.kind), handler.batch, len(given))
		}
		row := queue.Job{
			Run: queue.Run{ID: int64(i) + 1, Claim: 1}, Kind: spec.job.Kind, Priority: cmp.Or(spec.job.Priority, defaultPriority), RunAt: now,
			Args: spec.job.Args, Meta: spec.job.Meta, Attempt: g.Failures + 1, Failures: g.Failures, Most: spec.job.MaxAttempts, Started: true,
		}
		if spec.job.At != nil {
			row.RunAt = *spec.job.At
		}
		header := headerOf(row, cmp.Or(spec.job.Queue, DefaultQueue), cmp.Or(row.Most, handler.maxAttempts))
		runs = append(runs, &run{handler: handler, row: row, header: header, dryRun: &dryRun{}})
	}
	return runs, nil
}

// dryRunOutcome returns the outcome of a run. returned is what its handler has returned.
func (r *run) dryRunOutcome(ctx context.Context, failures int, returned error, db jobdryrun.Database) (o jobdryrun.Outcome, err error) {
	result, byTx, own, settled := r.reported()
	if settled && (returned == nil || !r.handler.tx || own != nil) {
		returned = own // the settled outcome was not rolled back
	}
	if byTx {
		committed := false
		if r.dryRun.txid != "" {
			if committed, err = db.Committed(ctx, r.dryRun.txid); err != nil {
				return o, err
			}
		}
		switch {
		case committed:
			returned = nil // the job has completed, whatever the handler returned
		case returned == nil:
			returned = errUncommitted
		}
	}
	end := r.handler.decide(r.row, result, returned, nil)
	o = jobdryrun.Outcome{
		State: string(end.To), Outcome: string(end.Outcome), Counts: end.Counts, Code: end.Code, Err: returned, Result: end.Result, Logs: r.dryRun.logs,
	}
	switch {
	case end.Counts && end.To == queue.Available && failures+1 >= r.header.MaxAttempts:
		o.State, o.Outcome = string(queue.Failed), ""
	case end.To == queue.Available && end.Delay != nil:
		o.Delay = time.Duration(*end.Delay) * time.Microsecond
	}
	return o, nil
}
