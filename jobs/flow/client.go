package flow

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

var (
	// ErrNotFound: there is no run of this id, or it has no such step. It may have ended
	// longer ago than runs are kept.
	ErrNotFound = errors.New("flow: no such run or step")
	// ErrKeyBusy: another run of the flow has the key. Or the one that had it has ended
	// each time that it was looked for: then try again.
	ErrKeyBusy = errors.New("flow: the key is another run's")
	// ErrUnfinished: the run has not ended, so it cannot be retried.
	ErrUnfinished = errors.New("flow: the run has not ended: wait for its end, or cancel it")
	// ErrNoOutput: the step has no result, since it has not completed or does not give
	// one.
	ErrNoOutput = errors.New("flow: the step has no output")
)

// FailedError is returned by [Client.Wait] when a run has not completed.
type FailedError struct {
	Run   int64
	State State
	Step  string // one that has not ended well; empty: none, or not known
	Code  string // of its job's last error
	Text  string
}

func (e *FailedError) Error() string {
	text := fmt.Sprintf("flow: run %d has %s", e.Run, e.State)
	if e.State == StateCancelled {
		text = fmt.Sprintf("flow: run %d was %s", e.Run, e.State)
	}
	if e.Step != "" {
		text += ": step " + errtext.Value(e.Step)
	}
	if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return errtext.Line(text)
}

// Client starts runs, and looks what becomes of them. Any number of goroutines may use
// it.
type Client struct {
	core jobflow.Client
	sql  statements
}

// NewClient makes a client with the database and the tables of a client of jobs. What is
// wrong with that, each call returns.
func NewClient(client *jobs.Client) *Client {
	c := &Client{}
	if client == nil {
		c.core.Err = errors.New("flow: client is nil: make one with jobs.NewClient")
		return c
	}
	c.core = jobflow.Of(client)
	c.sql = newStatements(c.core.Tables)
	return c
}

// Started tells which run it is.
type Started struct {
	Run      int64
	Existing bool // it has the key, and was started before
}

// StartOption is an option of [Flow.Start].
type StartOption func(*startSpec)

type startSpec struct {
	key  sql.NullString
	errs []error
}

// Key starts a run only while no other of the flow that has not ended has the key.
// Otherwise that one is returned, [Started.Existing]. Two transactions that start runs
// under the same key wait for each other. The run that is returned may have begun with
// something else, and may be about to be cancelled: see [Client.Get].
func Key(key string) StartOption {
	return func(s *startSpec) {
		if s.key = (sql.NullString{String: key, Valid: true}); key == "" || len(key) > maxKey || strings.ContainsRune(key, 0) || !utf8.ValidString(key) {
			s.errs = append(s.errs, fmt.Errorf("Key %s takes 1 to %d bytes of text", errtext.Value(key), maxKey))
		}
	}
}

const (
	maxKey = 1000 // bytes; an index has it
	// keyTries bounds how often a run is started again whose key was free again when its
	// owner was looked up.
	keyTries = 3
)

// Start starts a run, in the transaction tx, or at once if tx is nil. Workers see it at
// the commit; what is rolled back was never started.
//
// The run keeps the shape that the flow has now. A program in which the flow has
// another one starts runs of another version, side by side with these.
func (f *Flow[In]) Start(ctx context.Context, c *Client, tx jobs.Querier, in In, opts ...StartOption) (Started, error) {
	var spec startSpec
	for _, o := range opts {
		if o != nil {
			o(&spec)
		}
	}
	s, err := f.shape(in)
	if err = errtext.Join(append(spec.errs, err)...); err != nil {
		return Started{}, errtext.Of(fmt.Errorf("%w %s: %w", ErrInvalid, errtext.Value(f.def.name), err))
	}
	started, err := with(c, tx, func(on jobs.Querier) (Started, error) {
		return c.start(ctx, on, f.def.name, s, spec.key)
	})
	if err != nil {
		return Started{}, errtext.Of(fmt.Errorf("flow: start %s: %w", errtext.Value(f.def.name), err))
	}
	return started, nil
}

func (c *Client) start(ctx context.Context, on jobs.Querier, name string, s shape, key sql.NullString) (started Started, err error) {
	steps, err := json.Marshal(s.Steps)
	if err != nil {
		return started, err
	}
	for range keyTries {
		err = on.QueryRowContext(ctx, c.sql.start, string(steps), name, s.version, s.record, key).Scan(&started.Run)
		if err == nil || !errors.Is(err, sql.ErrNoRows) {
			return started, err
		}
		err = on.QueryRowContext(ctx, c.sql.owner, name, key.String).Scan(&started.Run)
		if err == nil || !errors.Is(err, sql.ErrNoRows) {
			return Started{started.Run, true}, err
		}
	}
	return Started{}, fmt.Errorf("%w: %s", ErrKeyBusy, errtext.Value(key.String))
}

// with calls f with tx, or with the pool if that is nil.
func with[T any](c *Client, tx jobs.Querier, f func(on jobs.Querier) (T, error)) (t T, err error) {
	switch v := reflect.ValueOf(tx); {
	case c == nil:
		return t, errors.New("client is nil: make one with NewClient")
	case c.core.Err != nil:
		return t, c.core.Err
	case tx == nil:
		return f(c.core.DB)
	case v.Kind() == reflect.Pointer && v.IsNil():
		return t, fmt.Errorf("tx is a nil %T: give a transaction, or the untyped nil", tx)
	}
	return f(tx)
}

// inTx calls f in the transaction tx, or in one of its own if that is nil.
func inTx[T any](ctx context.Context, c *Client, tx jobs.Querier, f func(on jobs.Querier) (T, error)) (T, error) {
	return with(c, tx, func(on jobs.Querier) (t T, err error) {
		if tx != nil {
			return f(on)
		}
		own, err := c.core.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return t, err
		}
		defer func() { _ = own.Rollback() }() // a no-op after the commit
		if t, err = f(own); err != nil {
			return t, err
		}
		return t, own.Commit()
	})
}

// lock locks a run until the end of the transaction, and returns its state.
func (c *Client) lock(ctx context.Context, on jobs.Querier, run int64) (s State, cancelled bool, err error) {
	err = on.QueryRowContext(ctx, c.sql.lock, run).Scan(&s, &cancelled)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	return s, cancelled, err
}

// Cancel ends a run: steps that have not begun do not begin, and the contexts of those
// whose jobs run end, as [jobs.Client.Cancel] does. The run ends with the last of them.
//
// It returns the state in which it found the run; a run that has ended stays as it is.
// tx may be nil; the run is locked until its end.
//
// Steps of [OnFailure] and [OnEnd] do not begin either: clean up where you cancel.
func (c *Client) Cancel(ctx context.Context, tx jobs.Querier, run int64) (was State, err error) {
	was, err = inTx(ctx, c, tx, func(on jobs.Querier) (State, error) {
		was, cancelled, err := c.lock(ctx, on, run)
		if err != nil || was != StateRunning || cancelled {
			return was, err
		}
		return was, c.cancel(ctx, on, run)
	})
	if err != nil {
		return "", errtext.Of(fmt.Errorf("flow: cancel run %d: %w", run, err))
	}
	return was, nil
}

// cancel cancels a run that the transaction has locked.
func (c *Client) cancel(ctx context.Context, on jobs.Querier, run int64) error {
	for _, statement := range []string{c.sql.cancel, c.sql.stop} {
		if _, err := on.ExecContext(ctx, statement, run); err != nil {
			return err
		}
	}
	var steps, all, waiting, running []int64
	_, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (none struct{}, err error) {
		var step, job int64
		err = r.Scan(&step, &job)
		steps, all = append(steps, step), append(all, job)
		return none, err
	}, c.sql.enqueued, run)
	if err != nil {
		return err
	}
	_, err = pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (none struct{}, err error) {
		var job int64
		var runs bool
		if err = r.Scan(&job, &runs); runs {
			running = append(running, job)
		} else {
			waiting = append(waiting, job)
		}
		return none, err
	}, c.sql.hold, list(all))
	if err != nil {
		return err
	}
	if err := c.core.Queue.CancelAll(ctx, on, waiting); err != nil {
		return err
	}
	if err := c.core.Queue.AskAll(ctx, on, running); err != nil {
		return err
	}
	if len(running) > 0 {
		if err := changes.Tell(ctx, on, c.core.Tables.Changes); err != nil {
			return err
		}
	}
	return c.sql.advanceAll(ctx, on, steps, nil)
}

// Retry makes a run that has ended go on: the steps of these names begin again, and what
// depends on them. Without names it is the steps whose failure made the run fail, or that
// were cancelled with it; of a [Map] step it is the jobs that have failed. The others keep
// their ends and results. The run goes on in the shape in which it was started. tx may be
// nil; the run is locked until its end.
//
// What has completed without a failed step, by [Any], [Quorum] or another way, does not run
// again with that; nor does the failed step, unless it is named. So a run that has completed
// takes names.
//
// An [OnEnd] step runs again with what it comes after. An [OnFailure] step that ran before
// and is not needed now is skipped, and what it did stays done: undo it first.
func (c *Client) Retry(ctx context.Context, tx jobs.Querier, run int64, from ...string) error {
	_, err := inTx(ctx, c, tx, func(on jobs.Querier) (none struct{}, err error) {
		s, _, err := c.lock(ctx, on, run)
		switch {
		case err != nil:
			return none, err
		case s == StateRunning:
			return none, ErrUnfinished
		}
		return none, c.retry(ctx, on, run, s == StateCancelled, from)
	})
	if pgdriver.SQLState(err) == pgdriver.UniqueViolation {
		err = ErrKeyBusy
	}
	if err != nil {
		return errtext.Of(fmt.Errorf("flow: retry run %d: %w", run, err))
	}
	return nil
}

// retry revives a run that the transaction has locked.
func (c *Client) retry(ctx context.Context, on jobs.Querier, run int64, cancelled bool, from []string) error {
	ended, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (s endedStep, err error) {
		var edges string
		if err = r.Scan(&s.id, &s.name, &s.state, &s.mapped, &s.quorum, &s.leaf, &s.failed, &s.good, &edges); err == nil {
			s.edges, err = parseEdges(edges)
		}
		return s, err
	}, c.sql.edges, run)
	if err != nil {
		return err
	}
	plan, err := resume(ended, cancelled, from)
	if err != nil {
		return err
	}
	if len(plan.forget) > 0 {
		if _, err := on.ExecContext(ctx, c.sql.forget, list(plan.forget)); err != nil {
			return err
		}
	}
	again, err := json.Marshal(plan.again)
	if err != nil {
		return err
	}
	if _, err := on.ExecContext(ctx, c.sql.revive, run, string(again), plan.bad); err != nil {
		return err
	}
	moved := make([]movedStep, len(plan.again))
	for i, a := range plan.again {
		moved[i] = movedStep{int64(a.ID), a.State}
	}
	return c.sql.proceed(ctx, on, moved, nil)
}

// Wait waits until a run has ended, and returns it. If it has not completed, Wait
// returns a [FailedError] as well.
//
// It hears of the end as [jobs.Wait] does. Give ctx a deadline.
func (c *Client) Wait(ctx context.Context, run int64) (Run, error) {
	_, err := with(c, nil, func(on jobs.Querier) (none struct{}, err error) {
		return none, c.core.Ends.Until(ctx, "run "+strconv.FormatInt(run, 10), func() (over bool, err error) {
			var state State
			if err = on.QueryRowContext(ctx, c.sql.await, run).Scan(&state); err == nil && state == "" {
				err = ErrNotFound
			}
			return state != StateRunning, err
		})
	})
	if err != nil {
		return Run{}, errtext.Of(fmt.Errorf("flow: wait for run %d: %w", run, err))
	}
	r, err := c.Get(ctx, run)
	if err != nil || r.State == StateCompleted {
		return r, err
	}
	return r, r.failure()
}

// Output returns the result of a step of a run: in a handler of a later step, that of
// RunOf(j.Header). It returns [ErrNoOutput] if the step has none.
func (s *Step[A, R]) Output(ctx context.Context, c *Client, run int64) (result R, err error) {
	text, err := s.output(ctx, c, run)
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &result)
	}
	if err != nil {
		return result, s.noOutput(run, err)
	}
	return result, nil
}

// Outputs returns the results of those jobs of a step of [Map] that have completed, in
// the order of the list.
func (s *Mapped[A, R]) Outputs(ctx context.Context, c *Client, run int64) (results []R, err error) {
	if _, err = s.output(ctx, c, run); err == nil || errors.Is(err, ErrNoOutput) {
		var text string
		text, err = with(c, nil, func(on jobs.Querier) (text string, err error) {
			return text, on.QueryRowContext(ctx, c.sql.outputs, int64(idOf(run, s.n, 0))).Scan(&text)
		})
		if err == nil {
			err = json.Unmarshal([]byte(text), &results)
		}
	}
	if err != nil {
		return nil, s.noOutput(run, err)
	}
	return results, nil
}

func (p place) noOutput(run int64, err error) error {
	name := ""
	if p.n >= 0 {
		name = p.def.nodes[p.n].name
	}
	return errtext.Of(fmt.Errorf("flow: output of step %s of run %d: %w", errtext.Value(name), run, err))
}

// output reads the result of a step.
func (p place) output(ctx context.Context, c *Client, run int64) ([]byte, error) {
	if p.n < 0 {
		return nil, fmt.Errorf("%w: its flow refused the step", ErrInvalid)
	}
	if run < 1 || run > math.MaxInt64>>runShift {
		return nil, ErrNotFound
	}
	return with(c, nil, func(on jobs.Querier) (result []byte, err error) {
		var state, code, text string
		var ended bool
		err = on.QueryRowContext(ctx, c.sql.output, run, p.def.nodes[p.n].name, int64(idOf(run, p.n, 0))).Scan(&state, &ended, &code, &text, &result)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return nil, c.noStep(ctx, on, run)
		case err != nil:
			return nil, err
		case state != "completed" || !ended:
			return nil, fmt.Errorf("%w: it is %s", ErrNoOutput, shown(state, ""))
		}
		return result, nil
	})
}

// noStep says which steps a run has that lacks one.
func (c *Client) noStep(ctx context.Context, on jobs.Querier, run int64) error {
	names, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (name string, err error) { return name, r.Scan(&name) }, c.sql.names, run)
	switch {
	case err != nil:
		return err
	case len(names) == 0:
		return ErrNotFound
	}
	return fmt.Errorf("%w: the run is of another flow, or of another version of it, and has %s", ErrNotFound, listed(names))
}

// listed is some names as a text.
func listed(names []string) string {
	const most = 20
	var b strings.Builder
	for i, name := range names[:min(most, len(names))] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(errtext.Value(name))
	}
	if len(names) > most {
		fmt.Fprintf(&b, " and %d more", len(names)-most)
	}
	return b.String()
}

// list is how ids travel: as text, of JSON.
func list[T ~int64](ids []T) string {
	b := []byte{'['}
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return string(append(b, ']'))
}
