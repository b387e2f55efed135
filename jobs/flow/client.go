package flow

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/jobs"
)

var (
	// ErrNotFound reports that there is no run with this ID, or that the run has no such step. The
	// run may have ended longer ago than runs are kept.
	ErrNotFound = errors.New("flow: no such run or step")
	// ErrKeyBusy reports that another run of the flow has the key. Start returns ErrKeyBusy only
	// if, in all tries, that run had ended when Start read it: try again.
	ErrKeyBusy = errors.New("flow: the key is another run's")
	// ErrUnfinished reports that the run has not ended, so it cannot be retried.
	ErrUnfinished = errors.New("flow: the run has not ended: wait for its end, or cancel it")
	// ErrNoOutput reports that the step has no result. The step has not completed, or its handler
	// sets no result.
	ErrNoOutput = errors.New("flow: the step has no output")
)

// FailedError is what [Client.Wait] returns for a run that has not completed.
type FailedError struct {
	Run   int64
	State jobs.State
	Step  string // a step that has failed; empty: none, or unknown
	Code  string // code of the last error of its job
	Text  string
}

func (e *FailedError) Error() string {
	state := string(e.State)
	if e.Step != "" {
		state += ": step " + errtext.Value(e.Step)
	}
	return errtext.Outcome(fmt.Sprintf("flow: run %d", e.Run), state, e.Code, e.Text)
}

// Client starts, reads, changes and awaits runs. Any number of goroutines may use a client.
type Client struct {
	core jobflow.Client
	sql  statements
}

// NewClient makes a client with the database and the tables of a client of jobs. If that client is
// invalid, each call returns its error.
func NewClient(client *jobs.Client) *Client {
	c := &Client{}
	if client == nil {
		c.core.Err = errors.New("flow: client is nil: make one with jobs.NewClient")
		return c
	}
	c.core = jobflow.Of(client)
	c.sql = newStatements(c.core.Tables, mostSpread)
	return c
}

// Started identifies the run of a Start call.
type Started struct {
	Run      int64
	Existing bool // the run has the key, and was started before
}

// StartOption is an option of [Flow.Start].
type StartOption func(*startSpec)

type startSpec struct {
	key  sql.NullString
	errs []error
}

// Key starts a run only while no unfinished run of the flow has the key. Otherwise Start returns
// the run that has the key, with [Started.Existing]. Two transactions that start runs with the same
// key wait for each other. The existing run may have another input, and its cancellation may be
// under way: see [Client.Get].
func Key(key string) StartOption {
	return func(s *startSpec) {
		if s.key = (sql.NullString{String: key, Valid: true}); key == "" || len(key) > maxKey || strings.ContainsRune(key, 0) || !utf8.ValidString(key) {
			s.errs = append(s.errs, fmt.Errorf("Key %s takes 1 to %d bytes of text", errtext.Value(key), maxKey))
		}
	}
}

const (
	maxKey = 1000 // bytes; an index contains keys
	// keyTries bounds how often a run with a key is started again. A retry is needed if the key was
	// free again when its owner was read.
	keyTries = 3
)

// Start starts a run in the transaction tx, or at once if tx is nil. Workers see the run at the
// commit. After a rollback the run was never started.
//
// The run keeps the current shape of the flow. If the flow has another shape in another program,
// that program starts runs of another version. Runs of several versions run side by side.
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
		return Started{}, errtext.Of(fmt.Errorf("flow: start %s: %w", errtext.Value(f.def.name), pgdriver.Misfit(err)))
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
		if pgdriver.SQLState(err) == pgdriver.CheckViolation {
			err = fmt.Errorf("%w: the ID of a run is below 2^33: restart the sequence of %s, once runs with low IDs have been deleted", err, c.core.Tables.FlowRuns)
		}
		if err == nil || !errors.Is(err, sql.ErrNoRows) {
			return started, err
		}
		err = on.QueryRowContext(ctx, c.sql.owner, name, key.String).Scan(&started.Run)
		if err == nil || !errors.Is(err, sql.ErrNoRows) {
			return Started{started.Run, true}, err
		}
	}
	if !key.Valid {
		return started, pgdriver.Dropped(c.core.Tables.FlowRuns.String())
	}
	return Started{}, fmt.Errorf("%w: %s", ErrKeyBusy, errtext.Value(key.String))
}

// with calls f with tx, or with a pool: see [Client.on].
func with[T any](c *Client, tx jobs.Querier, f func(on jobs.Querier) (T, error)) (t T, err error) {
	pool, isPool, err := c.on(tx)
	switch {
	case err != nil:
		return t, err
	case !isPool:
		return f(tx)
	}
	err = pgdriver.Repeated(func() (err error) {
		t, err = f(pool)
		return err
	})
	return t, err
}

// inTx calls f with tx, or in a transaction of a pool: see [Client.on].
func inTx[T any](ctx context.Context, c *Client, tx jobs.Querier, f func(on jobs.Querier) (T, error)) (t T, err error) {
	pool, isPool, err := c.on(tx)
	switch {
	case err != nil:
		return t, err
	case !isPool:
		return f(tx)
	}
	err = pgdriver.InTx(ctx, pool, func(own *sql.Tx) (err error) { t, err = f(own); return err })
	return t, err
}

// on returns the pool of tx if tx is a *sql.DB, or the client's pool if tx is nil. For any other
// tx, isPool is false.
func (c *Client) on(tx jobs.Querier) (pool pgdriver.Pool, isPool bool, err error) {
	switch {
	case c == nil:
		return pool, false, errors.New("client is nil: make one with NewClient")
	case c.core.Err != nil:
		return pool, false, c.core.Err
	case tx == nil:
		return c.core.DB, true, nil
	case pgdriver.IsNil(tx):
		return pool, false, fmt.Errorf("tx is a nil %T: give a transaction, or the untyped nil", tx)
	}
	db, isPool := tx.(*sql.DB)
	return pgdriver.Pool{DB: db, Plans: c.core.DB.Plans}, isPool, nil
}

// Wait waits until a run has ended, and returns the run. If the run has not completed, Wait returns
// a [FailedError] as well.
//
// Wait is notified of the end as [jobs.Wait] is. Give ctx a deadline.
func (c *Client) Wait(ctx context.Context, run int64) (Run, error) {
	_, err := with(c, nil, func(on jobs.Querier) (none struct{}, err error) {
		return none, c.core.Ends.Until(ctx, "run "+strconv.FormatInt(run, 10), func() (over bool, err error) {
			var state jobs.State
			if err = on.QueryRowContext(ctx, c.sql.await, run).Scan(&state); err == nil && state == "" {
				err = c.notFound(ctx, on)
			}
			return state != jobs.StateRunning, err
		})
	})
	if err != nil {
		return Run{}, errtext.Of(fmt.Errorf("flow: wait for run %d: %w", run, err))
	}
	r, err := c.Get(ctx, run)
	if err != nil || r.State == jobs.StateCompleted {
		return r, pgdriver.CutOff(ctx, err)
	}
	return r, r.failure()
}

// notFound returns ErrNotFound, or jobs.ErrPrivileges if row-level security may have hidden
// the run.
func (c *Client) notFound(ctx context.Context, on jobs.Querier) error {
	if remedy, err := rights.Hidden(ctx, on, c.core.Tables.FlowRuns, c.core.Tables.FlowSteps); err == nil && remedy != "" {
		return fmt.Errorf("%w: %s", jobs.ErrPrivileges, remedy)
	}
	return ErrNotFound
}
