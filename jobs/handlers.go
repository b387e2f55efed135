package jobs

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
)

// Handlers are the handlers of a worker, one for each kind of job.
type Handlers struct {
	of   map[string]*handler
	errs []error // of registrations, which NewWorker has no way to return
}

// NewHandlers returns an empty set.
func NewHandlers() *Handlers { return &Handlers{of: map[string]*handler{}} }

// handler is what a worker knows of a kind.
type handler struct {
	kind           string
	timeout        time.Duration
	maxAttempts    int
	retry          RetryPolicy
	terminal, only []string // codes
	batch          int      // jobs that it takes at once
	many           bool     // it takes several
	tx             bool     // it takes a transaction

	decode func(r *run) (job any, err error)
	call   func(ctx context.Context, tx *sql.Tx, jobs []any) error
}

// HandlerOption is an option of a registration.
type HandlerOption interface{ applyHandler(*handler) }

type handlerOption func(*handler)

func (o handlerOption) applyHandler(h *handler) { o(h) }

// Timeout bounds a run: its context ends with [ErrTimeout]. A handler that has not
// returned ten seconds later is given up: its job is tried again, its slot stays
// taken until it returns. The default is a minute; 0 is no bound.
func Timeout(d time.Duration) HandlerOption { return handlerOption(func(h *handler) { h.timeout = d }) }

// Retry says when a failed job is tried again. The default is
// Exponential(15*time.Second, 24*time.Hour).
func Retry(p RetryPolicy) HandlerOption { return handlerOption(func(h *handler) { h.retry = p }) }

// Terminal names codes of errors after which a job is not tried again.
func Terminal(codes ...string) HandlerOption {
	return handlerOption(func(h *handler) { h.terminal = append(h.terminal, codes...) })
}

// OnlyRetry names the codes of the errors after which a job is tried again. It
// fails after any other.
func OnlyRetry(codes ...string) HandlerOption {
	return handlerOption(func(h *handler) { h.only = append(h.only, codes...) })
}

// BatchSize bounds how many jobs a handler of batches gets at once, 100 by default.
func BatchSize(n int) HandlerOption { return handlerOption(func(h *handler) { h.batch = n }) }

// JobOption is an option of a registration and of enqueueing. What a job was
// enqueued with applies before what its handler was registered with.
type JobOption interface {
	HandlerOption
	EnqueueOption
}

type maxAttempts int

func (n maxAttempts) applyHandler(h *handler)     { h.maxAttempts = int(n) }
func (n maxAttempts) applyEnqueue(e *enqueueSpec) { e.job.MaxAttempts, e.mostSet = int(n), true }

// MaxAttempts bounds the attempts of a job: it has failed after so many failures,
// 15 by default. Runs that were lost, snoozed or released do not count.
func MaxAttempts(n int) JobOption { return maxAttempts(n) }

// Register adds a handler for the jobs of T's kind. A job is complete when the
// handler returns nil; any error is tried again, as Retry and MaxAttempts say, but
// what [Fail], [RetryAfter], [Snooze] and [Discard] make.
//
// A job may run more than once: when a worker dies, or its claim is lost, another
// one runs it. Use [RegisterTx] for effects in the same database.
func Register[T Args](h *Handlers, handle func(ctx context.Context, j *Job[T]) error, opts ...HandlerOption) {
	add[T](h, handle == nil, handler{batch: 1}, func(ctx context.Context, _ *sql.Tx, jobs []any) error {
		return handle(ctx, jobs[0].(*Job[T]))
	}, opts)
}

// RegisterTx adds a handler whose effects in tx and the job's completion are one
// transaction: they happen exactly once. An error rolls tx back. The worker commits
// after the handler has returned nil.
//
// The handler must not end tx, not even for another one (AND CHAIN). If it does, its job
// has failed, with [CodeTxEnded], and does not run again: what it wrote may stay. One
// end does not show: if another transaction follows at once, and a statement fails in that,
// the job runs again.
func RegisterTx[T Args](h *Handlers, handle func(ctx context.Context, tx *sql.Tx, j *Job[T]) error, opts ...HandlerOption) {
	add[T](h, handle == nil, handler{batch: 1, tx: true}, func(ctx context.Context, tx *sql.Tx, jobs []any) error {
		return handle(ctx, tx, jobs[0].(*Job[T]))
	}, opts)
}

// RegisterBatch adds a handler that takes many jobs of a kind at once: as many as
// the worker has claimed together, up to BatchSize. A batch takes as many slots as
// it has jobs. What the handler returns is the outcome of all jobs that it has not
// given one with [Job.Settle].
//
// After an error or a panic the jobs without an outcome of their own run again at
// once in two halves, and so on, until the error is one job's: the others do not
// count a failure. What [Fail], [RetryAfter], [Snooze] and [Discard] make is the
// outcome of all. So is a Timeout; jobs that have failed run in batches of a quarter
// for each failure.
func RegisterBatch[T Args](h *Handlers, handle func(ctx context.Context, jobs []*Job[T]) error, opts ...HandlerOption) {
	add[T](h, handle == nil, handler{batch: defaultBatch, many: true}, func(ctx context.Context, _ *sql.Tx, jobs []any) error {
		return handle(ctx, typed[T](jobs))
	}, opts)
}

// RegisterBatchTx is RegisterBatch with one transaction for the effects and
// completions of a batch, as [RegisterTx] has for one job. A job to which Settle
// has given an error is not completed: the handler must leave its effects out.
func RegisterBatchTx[T Args](h *Handlers, handle func(ctx context.Context, tx *sql.Tx, jobs []*Job[T]) error, opts ...HandlerOption) {
	add[T](h, handle == nil, handler{batch: defaultBatch, many: true, tx: true}, func(ctx context.Context, tx *sql.Tx, jobs []any) error {
		return handle(ctx, tx, typed[T](jobs))
	}, opts)
}

func typed[T Args](jobs []any) []*Job[T] {
	all := make([]*Job[T], len(jobs))
	for i, j := range jobs {
		all[i] = j.(*Job[T])
	}
	return all
}

const (
	defaultTimeout  = time.Minute
	defaultAttempts = 15
	defaultBatch    = 100
)

func add[T Args](h *Handlers, missing bool, made handler, call func(ctx context.Context, tx *sql.Tx, jobs []any) error, opts []HandlerOption) {
	made.timeout, made.maxAttempts, made.retry = defaultTimeout, defaultAttempts, defaultRetry
	var zero T
	kind, err := kindOf(zero)
	made.kind, made.call = kind, call
	made.decode = func(r *run) (any, error) {
		j := &Job[T]{Header: r.header, run: r}
		return j, json.Unmarshal(r.row.Args, &j.Args)
	}
	for _, o := range opts {
		if o != nil {
			o.applyHandler(&made)
		}
	}
	if err == nil && missing {
		err = fmt.Errorf("the handler of kind %s is nil", errtext.Value(kind))
	}
	if err == nil {
		err = made.check()
	}
	if _, twice := h.of[kind]; twice && err == nil {
		err = fmt.Errorf("kind %s has two handlers", errtext.Value(kind))
	}
	if err != nil {
		h.errs = append(h.errs, err)
		return
	}
	if h.of == nil {
		h.of = map[string]*handler{}
	}
	h.of[kind] = &made
}

// batchAfter is how many jobs that have failed so often are given to the handler at
// once. One that makes each batch run into its time-out is soon among few, and its
// mates get on.
func (h *handler) batchAfter(failures int) int { return max(1, h.batch>>min(2*failures, 30)) }

// check reports options that are out of range.
func (h *handler) check() error {
	switch {
	case h.timeout < 0:
		return fmt.Errorf("option Timeout of kind %s: %v is out of range, it takes 0 for no bound, or more", errtext.Value(h.kind), h.timeout)
	case h.maxAttempts < 1 || h.maxAttempts > math.MaxInt32:
		return fmt.Errorf("option MaxAttempts of kind %s: %d is out of range, allowed is 1 to %d", errtext.Value(h.kind), h.maxAttempts, math.MaxInt32)
	case h.retry == nil:
		return fmt.Errorf("option Retry of kind %s: the policy is nil", errtext.Value(h.kind))
	case !h.many && h.batch != 1:
		return fmt.Errorf("option BatchSize of kind %s: its handler takes one job at a time: register it with RegisterBatch or RegisterBatchTx", errtext.Value(h.kind))
	case h.batch < 1 || h.batch > maxBatch:
		return fmt.Errorf("option BatchSize of kind %s: %d is out of range, allowed is 1 to %d", errtext.Value(h.kind), h.batch, maxBatch)
	}
	return nil
}

const maxBatch = 10_000

// kindOf asks arguments for their kind.
func kindOf(a Args) (kind string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("method Kind of %T panicked: %s: it is asked of a zero value too", a, errtext.Panic(v))
		}
	}()
	kind = a.Kind()
	if err := checkName("Kind", kind); err != nil {
		return "", fmt.Errorf("%w (of %T)", err, a)
	}
	return kind, nil
}

// kinds are those that have handlers, in order.
func (h *Handlers) kinds() []string { return slices.Sorted(maps.Keys(h.of)) }
