package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/store/pgxtx"
)

// task is what all jobs have for arguments: a token that no two share, and what
// the handler is to do in each run. When the acts are over, it does its work.
type task struct {
	Token string   `json:"token"`
	Acts  []string `json:"acts,omitempty"`
	N     int      `json:"n,omitempty"` // its place in a list, from 1
}

// The kinds, one for each way to register a handler, and one for CompleteTx.
type (
	plainTask    struct{ task }
	txTask       struct{ task }
	completeTask struct{ task }
	batchTask    struct{ task }
	batchTxTask  struct{ task }
)

func (plainTask) Kind() string    { return "plain" }
func (txTask) Kind() string       { return "tx" }
func (completeTask) Kind() string { return "complete" }
func (batchTask) Kind() string    { return "batch" }
func (batchTxTask) Kind() string  { return "batchtx" }

// kinds makes arguments of each kind.
var kinds = []func(task) jobs.Args{
	func(t task) jobs.Args { return plainTask{t} },
	func(t task) jobs.Args { return txTask{t} },
	func(t task) jobs.Args { return completeTask{t} },
	func(t task) jobs.Args { return batchTask{t} },
	func(t task) jobs.Args { return batchTxTask{t} },
}

// What a handler is told to do instead of its work, or before it.
const (
	actError   = "error"
	actRetry   = "retry"
	actSnooze  = "snooze"
	actFail    = "fail"
	actDiscard = "discard"
	actPanic   = "panic"
	actGoexit  = "goexit"
	actLinger  = "linger"
	actHang    = "hang"
	actUndo    = "undo"   // undoes CompleteTx; elsewhere no act
	actSkip    = "skip"   // the step of a flow
	actGamble  = "gamble" // to fail for good, or not: a retry of a run may go better
)

var errActed = errors.New("it was told to")

// handlers returns the handlers of a worker.
func (n *node) handlers() *jobs.Handlers {
	h := jobs.NewHandlers()
	opts := []jobs.HandlerOption{jobs.Timeout(n.knobs.HandlerTimeout), jobs.MaxAttempts(maxAttempts), jobs.Retry(jobs.Exponential(30*time.Millisecond, 500*time.Millisecond))}
	many := append([]jobs.HandlerOption{jobs.BatchSize(n.knobs.BatchSize)}, opts...)
	jobs.Register(h, func(ctx context.Context, j *jobs.Job[plainTask]) error {
		return n.run(ctx, j.Header, j.Args.task, func() error { return j.SetResult(j.Args.Token) })
	}, opts...)
	jobs.RegisterTx(h, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[txTask]) error {
		return n.run(ctx, j.Header, j.Args.task, func() error { return errors.Join(n.handled(ctx, tx, j.Header, j.Args.task), j.SetResult(j.Args.Token)) })
	}, opts...)
	jobs.Register(h, n.complete, opts...)
	jobs.RegisterBatch(h, func(ctx context.Context, all []*jobs.Job[batchTask]) error {
		return runBatch(ctx, n, all, func(a batchTask) task { return a.task }, func(*jobs.Job[batchTask]) error { return nil })
	}, many...)
	jobs.RegisterBatchTx(h, func(ctx context.Context, tx *sql.Tx, all []*jobs.Job[batchTxTask]) error {
		return runBatch(ctx, n, all, func(a batchTxTask) task { return a.task },
			func(j *jobs.Job[batchTxTask]) error { return n.handled(ctx, tx, j.Header, j.Args.task) })
	}, many...)
	n.handleLists(h, opts)
	return h
}

const effectInsert = `INSERT INTO sim_effects (job, attempt, worker, token) VALUES ($1::bigint, $2::int, $3::uuid, $4::text)`

// effect writes that the job has run, in the transaction that completes it.
func (n *node) effect(ctx context.Context, tx *sql.Tx, h jobs.Header, t task) error {
	_, err := tx.ExecContext(ctx, effectInsert, h.ID, h.Attempt, n.id(), t.Token)
	return err
}

// handled is effect in the transaction of a handler. With a driver that the library knows, pgx
// writes for every other job.
func (n *node) handled(ctx context.Context, tx *sql.Tx, h jobs.Header, t task) error {
	if n.Plain || h.ID%2 == 0 {
		return n.effect(ctx, tx, h, t)
	}
	return pgxtx.In(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, effectInsert, h.ID, h.Attempt, n.id(), t.Token)
		return err
	})
}

// begin records that a handler has a job in flight.
func (n *node) begin(h jobs.Header, t task) (number int) {
	return n.notes.begin(history.JobRun{Token: t.Token, ID: h.ID, Attempt: h.Attempt, Worker: n.id(), Name: n.Name})
}

// end records the outcome of a call. A process that is gone records nothing.
func (n *node) end(number int, outcome string) {
	if !n.gone.Load() {
		n.notes.end(number, outcome)
	}
}

// run runs a handler of one job: work is what it does in the end.
func (n *node) run(ctx context.Context, h jobs.Header, t task, work func() error) (err error) {
	number, outcome := n.begin(h, t), history.RunPanicked
	defer func() { n.end(number, outcome) }()
	n.reach()
	if outcome, err = n.act(ctx, actOf(h, t)); outcome != history.RunOK {
		return err
	}
	outcome = history.RunPanicked
	if err = work(); err != nil {
		outcome = history.RunFailed
		return err
	}
	outcome = history.RunOK
	return nil
}

// actOf is what the handler is to do in this run.
func actOf(h jobs.Header, t task) string {
	if h.Attempt <= len(t.Acts) {
		return t.Acts[h.Attempt-1]
	}
	return ""
}

// act does what a handler is told to. The outcome is RunOK if the handler is to go on.
func (n *node) act(ctx context.Context, what string) (outcome string, err error) {
	pause := n.between(0, 20*time.Millisecond)
	switch what {
	case actError:
		return history.RunFailed, errActed
	case actRetry:
		return history.RunDelayed, jobs.RetryAfter(n.between(0, 300*time.Millisecond), errActed)
	case actSnooze:
		return history.RunSnoozed, jobs.Snooze(n.between(0, 300*time.Millisecond))
	case actFail:
		return history.RunTerminal, jobs.Fail(errActed)
	case actDiscard:
		return history.RunDiscarded, jobs.Discard(errActed)
	case actSkip:
		return history.RunDiscarded, flow.Skip("it was told to")
	case actGamble:
		if n.between(0, time.Second) < time.Second/2 {
			return history.RunTerminal, jobs.Fail(errActed)
		}
	case actPanic:
		panic("sim: a handler that panics")
	case actGoexit:
		runtime.Goexit()
	case actHang:
		<-ctx.Done()
	case actLinger:
		pause = n.between(300*time.Millisecond, 900*time.Millisecond)
	}
	if !backoff.Sleep(ctx, pause) {
		return history.RunEnded, context.Cause(ctx)
	}
	return history.RunOK, nil
}

// complete completes its job in a transaction of its own, or rolls the transaction back without an
// error.
func (n *node) complete(ctx context.Context, j *jobs.Job[completeTask]) (err error) {
	t := j.Args.task
	number, outcome := n.begin(j.Header, t), history.RunPanicked
	defer func() { n.end(number, outcome) }()
	n.reach()
	act := actOf(j.Header, t)
	if outcome, err = n.act(ctx, act); outcome != history.RunOK {
		return err
	}
	outcome = history.RunFailed
	tx, err := n.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if err := errors.Join(n.effect(ctx, tx, j.Header, t), j.CompleteTx(ctx, tx)); err != nil {
		return err
	}
	if act == actUndo {
		outcome = history.RunUndone
		return nil
	}
	if err := tx.Commit(); err != nil {
		outcome = history.RunUnknown
		return fmt.Errorf("commit: %w", err)
	}
	outcome = history.RunOK
	return nil
}

// runBatch runs a handler of many jobs. A job that panics or hangs fails the others, too: the
// worker must find out which job it was.
func runBatch[T jobs.Args](ctx context.Context, n *node, all []*jobs.Job[T], taskOf func(T) task, work func(*jobs.Job[T]) error) error {
	numbers, outcomes := make([]int, len(all)), make([]string, len(all))
	for i, j := range all {
		numbers[i], outcomes[i] = n.begin(j.Header, taskOf(j.Args)), history.RunWithBatch
	}
	defer func() {
		for i, number := range numbers {
			n.end(number, outcomes[i])
		}
	}()
	n.reach()
	for i, j := range all {
		outcome, err := n.act(ctx, actOf(j.Header, taskOf(j.Args)))
		switch outcome {
		case history.RunOK:
			if err = work(j); err != nil {
				return err
			}
		case history.RunEnded:
			return err
		default:
			j.Settle(err)
			outcomes[i] = outcome
		}
	}
	for i, o := range outcomes {
		if o == history.RunWithBatch {
			outcomes[i] = history.RunOK
		}
	}
	return nil
}

// handlerFaults are what handlers are told to do by the arguments of their jobs.
var handlerFaults = []faultRow{
	actRow(actError, "returns an error", oracle.FailingHandlers),
	actRow(actRetry, "returns an error and says when to try again", oracle.FailingHandlers, oracle.DelayingHandlers),
	actRow(actSnooze, "snoozes", oracle.SnoozingHandlers),
	actRow(actFail, "fails for good", oracle.TerminalHandlers),
	actRow(actDiscard, "discards its job", oracle.DiscardingHandlers),
	actRow(actPanic, "panics", oracle.FailingHandlers, oracle.PanickingHandlers),
	actRow(actGoexit, "ends its goroutine", oracle.FailingHandlers, oracle.PanickingHandlers),
	actRow(actLinger, "takes up to a second"),
	actRow(actHang, "waits for the end of its context", oracle.FailingHandlers, oracle.HangingHandlers),
	actRow(actUndo, "completes its job in a transaction, rolls that back and returns nil", oracle.FailingHandlers, oracle.UndoingHandlers),
}

// actRow is a fault of handlers. It is counted when a job is enqueued with it.
func actRow(act, does string, reaches ...oracle.Condition) faultRow {
	return faultRow{act: act, Row: fault.New(act, "a handler "+does, history.Fault("jobs whose handler "+does)).Reaching(reaches...)}
}
