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

// Handlers holds the handlers of a worker, one per kind of job.
type Handlers struct {
	of   map[string]*handler
	errs []error // errors of registrations; NewWorker returns no error, so Start returns them
}

// NewHandlers returns an empty set of handlers.
func NewHandlers() *Handlers { return &Handlers{of: map[string]*handler{}} }

// handler is a registered handler with its options.
type handler struct {
	kind           string
	timeout        time.Duration
	maxAttempts    int
	retry          RetryPolicy
	terminal, only []string // error codes
	batch          int      // jobs of a call, at most
	many           bool     // takes several jobs
	tx             bool     // takes a transaction

	decode func(r *run) (job any, err error)
	call   func(ctx context.Context, tx *sql.Tx, jobs []any) error
}

// HandlerOption is an option of a registration.
type HandlerOption interface{ applyHandler(*handler) }

type handlerOption func(*handler)

func (o handlerOption) applyHandler(h *handler) { o(h) }

// Timeout bounds a run: its context ends with [ErrTimeout]. A handler that has not returned ten
// seconds later is given up. Its job is retried, and its slot stays taken until the handler
// returns. The default is a minute; 0 is no bound.
func Timeout(d time.Duration) HandlerOption { return handlerOption(func(h *handler) { h.timeout = d }) }

// Retry sets the delay before a failed job is retried. The default is Exponential(15*time.Second,
// 24*time.Hour): 15 attempts take about three days.
func Retry(p RetryPolicy) HandlerOption { return handlerOption(func(h *handler) { h.retry = p }) }

// Terminal names error codes after which a job is not retried.
func Terminal(codes ...string) HandlerOption {
	return handlerOption(func(h *handler) { h.terminal = append(h.terminal, codes...) })
}

// OnlyRetry names the only error codes after which a job is retried. After any other error the job
// fails.
func OnlyRetry(codes ...string) HandlerOption {
	return handlerOption(func(h *handler) { h.only = append(h.only, codes...) })
}

// BatchSize bounds how many jobs one call of a batch handler gets: 100 by default.
func BatchSize(n int) HandlerOption { return handlerOption(func(h *handler) { h.batch = n }) }

// JobOption is an option of a registration and of enqueueing. The value of the job overrides the
// value of its handler.
type JobOption interface {
	HandlerOption
	EnqueueOption
}

type maxAttempts int

func (n maxAttempts) applyHandler(h *handler)     { h.maxAttempts = int(n) }
func (n maxAttempts) applyEnqueue(e *enqueueSpec) { e.job.MaxAttempts, e.mostSet = int(n), true }

// MaxAttempts bounds the attempts of a job. The job has failed after n failures: 15 by default.
// Runs that were lost, snoozed or released do not count.
func MaxAttempts(n int) JobOption { return maxAttempts(n) }

// Register adds a handler for the jobs of T's kind. A job has completed when the handler returns
// nil. After an error the job is retried, as Retry and MaxAttempts say. The errors of [Fail],
// [RetryAfter], [Snooze] and [Discard] are exceptions.
//
// A job may run more than once. If a worker dies or loses its claim, another worker runs the job.
// Use [RegisterTx] for effects in the same database.
func Register[T Args](h *Handlers, handle func(ctx context.Context, j *Job[T]) error, opts ...HandlerOption) {
	add[T](h, handle == nil, handler{batch: 1}, func(ctx context.Context, _ *sql.Tx, jobs []any) error {
		return handle(ctx, jobs[0].(*Job[T]))
	}, opts)
}

// RegisterTx adds a handler whose effects in tx and the completion of the job are one transaction.
// The effects happen exactly once. An error rolls back tx. The worker commits after the handler has
// returned nil.
//
// The handler must not end tx, not even to begin another transaction (AND CHAIN). If it does, the
// job fails with [CodeTxEnded] and does not run again, since its writes may be committed. One case
// is not detected: another transaction follows at once, and a statement fails in it. Then the job
// runs again.
func RegisterTx[T Args](h *Handlers, handle func(ctx context.Context, tx *sql.Tx, j *Job[T]) error, opts ...HandlerOption) {
	add[T](h, handle == nil, handler{batch: 1, tx: true}, func(ctx context.Context, tx *sql.Tx, jobs []any) error {
		return handle(ctx, tx, jobs[0].(*Job[T]))
	}, opts)
}

// RegisterBatch adds a handler that takes many jobs of a kind in one call. A call gets the jobs
// that one claim has brought, up to BatchSize. A batch takes as many slots as it has jobs. The
// returned error is the outcome of all jobs without an outcome of their own from [Job.Settle].
//
// After an error or a panic, the jobs without an outcome of their own run again at once, in two
// halves. The halves are split again until the error belongs to one job. The other jobs do not
// count a failure. An error of [Fail], [RetryAfter], [Snooze] or [Discard] is the outcome of all
// jobs. A Timeout is the outcome of all jobs too. Each failure of a job divides the size of its
// next batch by four, so a job that makes its batches hang is soon alone. A cancelled job ends with
// its batch.
func RegisterBatch[T Args](h *Handlers, handle func(ctx context.Context, jobs []*Job[T]) error, opts ...HandlerOption) {
	add[T](h, handle == nil, handler{batch: defaultBatch, many: true}, func(ctx context.Context, _ *sql.Tx, jobs []any) error {
		return handle(ctx, typed[T](jobs))
	}, opts)
}

// RegisterBatchTx is RegisterBatch with one transaction for the effects and completions of a batch,
// as [RegisterTx] has for one job. A job that Settle has given an error is not completed. The
// handler must write none of its effects.
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

// batchAfter returns how many jobs with this number of failures share a call. A job that makes each
// batch time out is soon in a small batch, and the other jobs proceed.
func (h *handler) batchAfter(failures int) int { return max(1, h.batch>>min(2*failures, 30)) }

// check returns an error if an option is out of range.
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

// kindOf returns the kind of arguments.
func kindOf(a Args) (kind string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("method Kind of %T panicked: %s: it is also called on a zero value", a, errtext.Panic(v))
		}
	}()
	kind = a.Kind()
	if err := checkName("Kind", kind); err != nil {
		return "", fmt.Errorf("%w (of %T)", err, a)
	}
	return kind, nil
}

// kinds returns the kinds that have handlers, sorted.
func (h *Handlers) kinds() []string { return slices.Sorted(maps.Keys(h.of)) }
