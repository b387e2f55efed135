package jobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
)

// DefaultQueue is the queue of jobs that were enqueued without one.
const DefaultQueue = "default"

// enqueueSpec is a job with the options of its enqueueing.
type enqueueSpec struct {
	job     queue.NewJob
	delay   *time.Duration
	unique  int // number of options that set a unique key
	once    *queue.Once
	meta    any
	mostSet bool
	emitAs  string
	errs    []error
}

// EnqueueOption is an option of enqueueing.
type EnqueueOption interface{ applyEnqueue(*enqueueSpec) }

type enqueueOption func(*enqueueSpec)

func (o enqueueOption) applyEnqueue(e *enqueueSpec) { o(e) }

// At sets when the job is due, by the database's clock. By default the job is due at once.
func At(t time.Time) EnqueueOption {
	t = t.UTC() // JSON has no zone for a date, and none with seconds
	return enqueueOption(func(e *enqueueSpec) { e.job.At = &t })
}

// In makes the job due after a delay, by the database's clock.
func In(delay time.Duration) EnqueueOption {
	return enqueueOption(func(e *enqueueSpec) { e.delay = &delay })
}

// Queue puts the job into a queue other than [DefaultQueue].
func Queue(name string) EnqueueOption {
	return enqueueOption(func(e *enqueueSpec) {
		e.job.Queue = name
		if err := checkQueue("Queue", name); err != nil {
			e.errs = append(e.errs, err)
		}
	})
}

// Priority sets the priority of the job: 1 to 9, 5 by default. Of the due jobs of a queue, the jobs
// with the smallest number run first.
func Priority(n int) EnqueueOption {
	return enqueueOption(func(e *enqueueSpec) {
		e.job.Priority = n
		if n < 1 || n > 9 {
			e.errs = append(e.errs, fmt.Errorf("Priority: %d is out of range, allowed is 1, the first, to 9", n))
		}
	})
}

// GoodUntil expires the job if it has not started by t, also between attempts. The zero time is
// refused: leave out the option for a job that does not expire.
func GoodUntil(t time.Time) EnqueueOption {
	t = t.UTC()
	return enqueueOption(func(e *enqueueSpec) { e.job.GoodUntil = &t })
}

// Unique enqueues the job only while no unfinished job has the key. Otherwise Enqueue returns the
// job that has the key, with [Enqueued.Existing]. Two transactions that enqueue the same key wait
// for each other.
func Unique(key string) EnqueueOption { return unique("Unique", key, false) }

// UniqueUntilStart is Unique, but the key is free once the job starts. Use it if the job may read
// data before the change that another enqueue announces: the other job is enqueued while the first
// runs.
func UniqueUntilStart(key string) EnqueueOption { return unique("UniqueUntilStart", key, true) }

func unique(option, key string, untilStart bool) EnqueueOption {
	return enqueueOption(func(e *enqueueSpec) {
		e.job.UniqueKey, e.job.UntilStart = key, untilStart
		e.unique++
		if err := checkText(option, key, maxKey); err != nil {
			e.errs = append(e.errs, err)
		}
	})
}

// Once enqueues one job for a key, whatever the outcome of the job. The key is kept for keep; 0
// keeps it for ever. A second call with the same kind and arguments returns the first job. A second
// call with another kind or other arguments returns [ErrKeyReused].
func Once(key string, keep time.Duration) EnqueueOption {
	return enqueueOption(func(e *enqueueSpec) {
		e.once = &queue.Once{Key: key, For: keep}
		if err := checkText("Once", key, maxKey); err != nil {
			e.errs = append(e.errs, err)
		}
		if keep < 0 {
			e.errs = append(e.errs, fmt.Errorf("Once: %v is out of range, it takes 0, for good, or more", keep))
		}
	})
}

// Meta stores a value beside the arguments, such as the enqueuing user or a trace. The value may be
// anything that has a JSON form.
func Meta(v any) EnqueueOption { return enqueueOption(func(e *enqueueSpec) { e.meta = v }) }

// MaxResets bounds how many workers may be lost while they run the job: 5 by default. Then the job
// has failed.
func MaxResets(n int) EnqueueOption {
	return enqueueOption(func(e *enqueueSpec) {
		e.job.MaxResets = &n
		if n < 0 || n > math.MaxInt32 {
			e.errs = append(e.errs, fmt.Errorf("MaxResets: %d is out of range, allowed is 0 to %d", n, math.MaxInt32))
		}
	})
}

// EnqueueParams is one job of [Client.EnqueueMany].
type EnqueueParams struct {
	Args    Args
	Options []EnqueueOption
}

// Enqueued identifies the job of an Enqueue call.
type Enqueued struct {
	ID       int64
	Existing bool // another job has the key; ID is the ID of that job, 0 if unknown
}

// spec checks the parameters and returns the job to enqueue.
func (e EnqueueParams) spec() (s enqueueSpec, err error) {
	if pgdriver.IsNil(e.Args) {
		return s, fmt.Errorf("%w: the arguments are nil", ErrInvalid)
	}
	for _, o := range e.Options {
		if o != nil {
			o.applyEnqueue(&s)
		}
	}
	fail := func(err error) { s.errs = append(s.errs, err) }
	if s.job.Kind, err = kindOf(e.Args); err != nil {
		fail(err)
	}
	if s.job.Args, err = encode(e.Args); err != nil {
		fail(fmt.Errorf("the arguments: %w", err))
	}
	if s.meta != nil {
		if s.job.Meta, err = encode(s.meta); err != nil {
			fail(fmt.Errorf("Meta: %w", err))
		}
		if string(s.job.Meta) == "null" { // v is a nil pointer: there is no Meta
			s.job.Meta = nil
		}
	}
	s.checkTimes(fail)
	if n := s.job.MaxAttempts; s.mostSet && (n < 1 || n > math.MaxInt32) {
		fail(fmt.Errorf("MaxAttempts: %d is out of range, allowed is 1 to %d", n, math.MaxInt32))
	}
	if s.unique > 1 || s.unique == 1 && s.once != nil {
		fail(fmt.Errorf("a job has one key: Unique, UniqueUntilStart or Once"))
	}
	if len(s.errs) > 0 {
		return s, fmt.Errorf("%w of kind %s: %w", ErrInvalid, errtext.Value(s.job.Kind), errtext.Join(s.errs...))
	}
	if s.once != nil {
		s.once.Hash = hashOf(s.job)
	}
	return s, nil
}

func (s *enqueueSpec) checkTimes(fail func(error)) {
	if s.delay != nil {
		if s.job.At != nil {
			fail(fmt.Errorf("At and In exclude each other"))
		}
		if *s.delay < 0 || *s.delay > longestDelay {
			fail(fmt.Errorf("In: %v is out of range, allowed is 0 to %v", *s.delay, longestDelay))
		}
		s.job.Delay = s.delay.Microseconds()
	}
	if t := s.job.GoodUntil; t != nil && t.IsZero() {
		fail(fmt.Errorf("GoodUntil: the time is zero: leave the option out for a job that does not expire"))
	}
	for option, t := range map[string]*time.Time{"At": s.job.At, "GoodUntil": s.job.GoodUntil} {
		if t != nil && (t.Year() < 1 || t.Year() > 9999) {
			fail(fmt.Errorf("%s: %v is out of range, allowed are the years 1 to 9999", option, t))
		}
	}
}

// hashOf returns a hash of kind and arguments. It distinguishes different jobs under one key of
// Once.
func hashOf(j queue.NewJob) string {
	text, _ := json.Marshal([]any{j.Kind, j.Args})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Querier is what a job can be enqueued with: *sql.Tx, *sql.Conn or *sql.DB.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Enqueue enqueues a job in the transaction tx, or at once if tx is nil. Workers see the job at the
// commit. After a rollback the job was never enqueued.
//
// Invalid arguments or options return [ErrInvalid], before any statement is sent. [ErrKeyReused]
// names the job that has the key.
func (c *Client) Enqueue(ctx context.Context, tx Querier, args Args, opts ...EnqueueOption) (Enqueued, error) {
	all, err := c.EnqueueMany(ctx, tx, []EnqueueParams{{args, opts}})
	if err != nil {
		return Enqueued{}, err
	}
	return all[0], nil
}

// EnqueueMany enqueues jobs as Enqueue does, in few statements, and returns them in order. Without
// tx or with a *sql.DB, several jobs are enqueued in one transaction of their own: all or none.
// With a *sql.Conn this holds only in a transaction that the caller has begun on the connection.
//
// If the jobs take several statements, jobs with keys are enqueued in the order of their keys. So
// two calls with the same keys do not deadlock. The other jobs keep their order.
func (c *Client) EnqueueMany(ctx context.Context, tx Querier, entries []EnqueueParams) (all []Enqueued, err error) {
	if c.err != nil {
		return nil, c.err
	}
	specs := make([]enqueueSpec, len(entries))
	for i, e := range entries {
		if specs[i], err = e.spec(); err != nil {
			if len(entries) > 1 {
				err = fmt.Errorf("%w (entry %d of this call, from 0)", err, i)
			}
			return nil, err
		}
	}
	if err := checkKeys(specs); err != nil {
		return nil, err
	}
	err = c.on(ctx, tx, len(entries) > 1, func(on Querier) error {
		all, err = c.insert(ctx, on, specs)
		return err
	})
	return all, errtext.Of(pgdriver.Misfit(err))
}

// checkKeys refuses different jobs under one key of Once in the same call. The first of the jobs
// would be rolled back with the call. So the database could not name an existing job in its error.
func checkKeys(specs []enqueueSpec) error {
	first := map[string]int{}
	for i, s := range specs {
		if s.once == nil {
			continue
		}
		if at, is := first[s.once.Key]; !is {
			first[s.once.Key] = i
		} else if specs[at].once.Hash != s.once.Hash {
			return fmt.Errorf("%w: entries %d and %d of this call differ in kind or arguments, and are both under %s", ErrKeyReused, at, i, errtext.Value(s.once.Key))
		}
	}
	return nil
}

// on calls f with tx. Without tx, on calls f with the pool or with a transaction of its own. If the
// default isolation is stricter than read committed, the pool may find a conflict. A transaction
// that names its isolation level does not find that conflict.
func (c *Client) on(ctx context.Context, tx Querier, several bool, f func(on Querier) error) error {
	if tx != nil && pgdriver.IsNil(tx) {
		return fmt.Errorf("jobs: tx is a nil %T: give a transaction, or the untyped nil", tx)
	}
	pool := c.db
	if given, is := tx.(*sql.DB); is {
		pool = pgdriver.Pool{DB: given, Plans: c.db.Plans}
	} else if tx != nil {
		return f(tx)
	}
	if !several {
		if err := f(pool); !pgdriver.IsConflict(err) {
			return err
		}
	}
	own, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("jobs: begin a transaction: %w", err)
	}
	defer func() { _ = own.Rollback() }() // a no-op after the commit
	if err := f(own); err != nil {
		return err
	}
	if err := own.Commit(); err != nil {
		return fmt.Errorf("jobs: commit: %w", err)
	}
	return nil
}

// A statement takes at most this many jobs, and this many bytes of arguments and Meta.
const (
	statementJobs  = 1000
	statementBytes = 8 << 20
)

// insert enqueues specs and returns the outcomes in the order of specs. Two calls with the same
// keys must not deadlock. If the keys take several statements, every call sorts the keys in the
// same order. Keys of Once come before the others.
func (c *Client) insert(ctx context.Context, on Querier, specs []enqueueSpec) ([]Enqueued, error) {
	if !spreadsKeys(specs) {
		return c.insertSorted(ctx, on, specs)
	}
	order := make([]int, len(specs))
	for i := range order {
		order[i] = i
	}
	byKey := func(i, j int) int {
		a, b := specs[i], specs[j]
		return cmp.Or(-cmp.Compare(a.onceKey(), b.onceKey()), cmp.Compare(a.job.UniqueKey, b.job.UniqueKey))
	}
	slices.SortStableFunc(order, byKey)
	sorted := make([]enqueueSpec, len(specs))
	for k, i := range order {
		sorted[k] = specs[i]
	}
	placed, err := c.insertSorted(ctx, on, sorted)
	if err != nil {
		return nil, err
	}
	all := make([]Enqueued, len(specs))
	for k, i := range order {
		all[i] = placed[k]
	}
	return all, nil
}

// spreadsKeys reports whether the keys of specs take several statements. A single statement sorts
// its keys itself.
func spreadsKeys(specs []enqueueSpec) bool {
	keys, once, bytes := 0, 0, 0
	for _, s := range specs {
		bytes += len(s.job.Args) + len(s.job.Meta)
		if s.once != nil {
			once++
		}
		if s.once != nil || s.job.UniqueKey != "" {
			keys++
		}
	}
	return keys > 1 && (once > 0 || len(specs) > statementJobs || bytes >= statementBytes)
}

func (s enqueueSpec) onceKey() string {
	if s.once == nil {
		return ""
	}
	return s.once.Key
}

// insertSorted enqueues specs in order. Each job with a key of Once takes a statement of its own.
func (c *Client) insertSorted(ctx context.Context, on Querier, specs []enqueueSpec) ([]Enqueued, error) {
	all := make([]Enqueued, len(specs))
	for from := 0; from < len(specs); {
		if specs[from].once != nil {
			one, err := c.insertOnce(ctx, on, specs[from])
			if err != nil {
				return nil, err
			}
			all[from] = one
			from++
			continue
		}
		to, bytes := from, 0
		for to < len(specs) && specs[to].once == nil && to-from < statementJobs && (bytes == 0 || bytes < statementBytes) {
			bytes += len(specs[to].job.Args) + len(specs[to].job.Meta)
			to++
		}
		if err := c.insertList(ctx, on, specs[from:to], all[from:to]); err != nil {
			return nil, err
		}
		from = to
	}
	return all, nil
}

// uniqueTries bounds how often a job with a key is enqueued again. A retry is needed if the key was
// free again when its owner was read.
const uniqueTries = 3

func (c *Client) insertList(ctx context.Context, on Querier, specs []enqueueSpec, into []Enqueued) error {
	rest := make([]int, len(specs)) // indexes of specs without an ID so far
	for i := range specs {
		rest[i] = i
	}
	for try := 0; len(rest) > 0; try++ {
		jobs := make([]queue.NewJob, len(rest))
		for k, i := range rest {
			jobs[k] = specs[i].job
		}
		ids, err := c.queue.Enqueue(ctx, on, jobs)
		if err != nil {
			return err
		}
		var taken []int
		var keys []string
		for k, i := range rest {
			if into[i].ID = ids[k]; ids[k] == 0 {
				taken, keys = append(taken, i), append(keys, specs[i].job.UniqueKey)
			}
		}
		if len(taken) == 0 {
			return nil
		}
		owners, err := c.queue.Owners(ctx, on, keys)
		if err != nil {
			return err
		}
		rest = rest[:0]
		for _, i := range taken {
			if id, ok := owners[specs[i].job.UniqueKey]; ok {
				into[i] = Enqueued{ID: id, Existing: true}
			} else {
				rest = append(rest, i)
			}
		}
		if len(rest) > 0 && try+1 == uniqueTries {
			return fmt.Errorf("%w: %s", ErrUniqueBusy, errtext.Value(specs[rest[0]].job.UniqueKey))
		}
	}
	return nil
}

func (c *Client) insertOnce(ctx context.Context, on Querier, s enqueueSpec) (Enqueued, error) {
	for range uniqueTries {
		id, err := c.queue.EnqueueOnce(ctx, on, s.job, *s.once)
		if id != 0 || err != nil {
			return Enqueued{ID: id}, err
		}
		id, hash, err := c.queue.OnceOwner(ctx, on, s.once.Key)
		switch {
		case err != nil:
			return Enqueued{}, err
		case id != 0 && hash != s.once.Hash:
			return Enqueued{}, fmt.Errorf("%w: job %d, of another kind or with other arguments, under %s", ErrKeyReused, id, errtext.Value(s.once.Key))
		case id != 0:
			return Enqueued{ID: id, Existing: true}, nil
		}
	}
	return Enqueued{}, fmt.Errorf("%w: %s", ErrUniqueBusy, errtext.Value(s.once.Key))
}
