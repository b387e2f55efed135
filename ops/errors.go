package ops

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

var (
	// ErrInvalid wraps the error of an invalid argument, such as a reason, a name or a
	// position. Such an error is returned before a statement is sent.
	ErrInvalid = errors.New("invalid argument")

	// ErrNotFound reports that the object of an operation does not exist: the consumer has no row in
	// the checkpoints table, or there is no such worker, event, dead letter, session, job, schedule
	// or run.
	ErrNotFound = errors.New("not found")

	// ErrNoDeadLetter is the ErrNotFound of a dead letter, which may have been handled or discarded
	// meanwhile.
	ErrNoDeadLetter = error(&refusal{ErrNotFound, "it has no dead letter at this position: DeadLetters lists them; it may have been handled or discarded meanwhile"})

	// ErrExists refuses a Rename to a name that is in use, and a Shadow of it.
	ErrExists = errors.New("the name is in use")

	// ErrUnchanged reports that there is nothing to change: the object is paused or not paused, at
	// the position, drains, or has the setting or the name already.
	ErrUnchanged = errors.New("unchanged")
)

// refusal is an error of a class that callers compare, with a text of its own.
type refusal struct {
	class error
	text  string
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) Unwrap() error { return r.class }

var (
	errNoCheckpoint = &refusal{ErrNotFound, "it has no row in the checkpoints table: check the name (Consumers lists them); a consumer gets its row when a worker that has code for it starts for the first time, and one that begins at the head when the transactions have ended that had drawn positions below it (Blockers lists them)"}
	errNoBlocker    = &refusal{ErrNotFound, "it is no longer in the transaction that was shown: Blockers lists those that are open"}
	errNoWorker     = &refusal{ErrNotFound, "no such worker is registered: Workers lists those that are; a worker that stops takes its row away"}
	errNoJob        = &refusal{ErrNotFound, "there is no such job: List lists the jobs; a finished job is deleted when its retention is over"}
	errNoFlowRun    = &refusal{ErrNotFound, "there is no such run: FlowRuns lists the runs; a run that has ended is deleted when its retention is over"}
	errNoEvents     = &refusal{ErrNotFound, "it has passed no event of this aggregate: check the type, the id, and the consumer's position (Consumers lists it)"}
	errNoneHandled  = &refusal{errNoEvents, "it has handled no event of this aggregate: check the type and the id; events that it could not handle are among DeadLetters"}
	errDropped      = &refusal{errNoEvents, "it is not known which events of this aggregate are in its rows, since one was skipped or discarded in a Replay: Replay the aggregate"}
	errAgain        = &refusal{errNoEvents, "it is handling events of this aggregate again since a Reset or a Replay: try again when it has done so (DeadLetters lists those of a Replay)"}
	errNoEvent      = &refusal{ErrNotFound, "no event is there: its transaction was rolled back, or is open"}
	errNoSchedule   = &refusal{ErrNotFound, "there is no such schedule: Schedules lists the schedules; a program with the schedule creates its row at its start"}

	errPaused     = &refusal{ErrUnchanged, "it is paused already"}
	errNotPaused  = &refusal{ErrUnchanged, "it is not paused"}
	errAtPosition = &refusal{ErrUnchanged, "it is at this position already"}
	errDraining   = &refusal{ErrUnchanged, "it already drains"}
	errSet        = &refusal{ErrUnchanged, "it is set so already"}
)

func takenError(name string, t ident.Table) error {
	return fmt.Errorf("%w: %s has rows of %s: choose another name, or remove that consumer with Retire", ErrExists, t.SQL(), errtext.Value(name))
}

// StateError refuses an operation on a job, or on a run of a flow, in state State.
type StateError struct {
	State jobs.State
	why   string
}

func (e *StateError) Error() string { return fmt.Sprintf("it is %s: %s", e.State, e.why) }

// NotSettledError refuses a Reset to a position above the settled position. Events may still
// appear below such a position, and would be lost.
type NotSettledError struct {
	To      int64
	Settled int64 // the highest position that a Reset may go forward to
}

func (e *NotSettledError) Error() string {
	return fmt.Sprintf("it cannot go forward to position %d: the log is known to be complete up to position %d only (running workers raise that about once a second, up to the oldest open transaction that may own positions): go no further than that, or try again later", e.To, e.Settled)
}

// NotNextError refuses a SkipEvent at a position at which the consumer is not stuck.
type NotNextError struct {
	Position   int64
	Checkpoint int64
	// InDoubt reports whether the consumer has passed the position in doubt and no event has
	// appeared there yet.
	InDoubt bool
	// Next, NextID and NextType are the event that the consumer handles next. They are zero if
	// there is no event.
	Next     int64
	NextID   uuid.UUID
	NextType string
}

func (e *NotNextError) Error() string {
	next := "there is no event for it at the moment"
	if e.Next > 0 {
		next = fmt.Sprintf("the next event is at position %d (event %s, type %s)", e.Next, e.NextID, errtext.Value(e.NextType))
	}
	at := "it does not come next"
	switch {
	case e.InDoubt:
		at = "no event has appeared there yet"
	case e.Position <= e.Checkpoint:
		at = "it has been passed"
	}
	return fmt.Sprintf("position %d cannot be skipped, %s: the checkpoint is %d, and %s", e.Position, at, e.Checkpoint, next)
}

// NotStuckError refuses a SkipEvent at the next event if the consumer's worker reports that the
// consumer is not stuck there.
type NotStuckError struct {
	Position int64
	Worker   uuid.UUID
	Ago      time.Duration // age of the worker's last heartbeat, which reported Stuck
	Stuck    int64         // the position at which the consumer is stuck; 0: it is not stuck
}

func (e *NotStuckError) Error() string {
	at := "not stuck: if the event has failed since, try again after the next heartbeat"
	switch {
	case e.Stuck > 0 && e.Stuck < e.Position:
		at = fmt.Sprintf("stuck at position %d: if the event at %d has failed since, try again after the next heartbeat", e.Stuck, e.Position)
	case e.Stuck > 0:
		at = fmt.Sprintf("stuck at position %d: the events before it have not failed; give the worker WithBatchSize(1), and skip %d when it comes next", e.Stuck, e.Stuck)
	}
	return fmt.Sprintf("position %d cannot be skipped: worker %s, which runs the consumer, reported %v ago that it is %s; to skip the event, Pause the consumer first", e.Position, e.Worker, e.Ago.Round(time.Millisecond), at)
}

// MovedError refuses a change if the consumer has changed since the operator decided.
type MovedError struct {
	Decided  int64 // the revision at the operator's decision
	Revision int64 // the consumer's revision now
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("it was decided on revision %d, and the consumer has revision %d now: a worker or an operator has moved it since: read it again and decide again", e.Decided, e.Revision)
}

// UnknownOutcomeError reports that the answer to a COMMIT was lost. The change may or may not
// have been made. Check before you repeat the change.
type UnknownOutcomeError struct {
	// Operation is the ID that Operations lists if the change was made.
	Operation int64
	Err       error
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("the answer to COMMIT was lost, so the change may have been made or not: it was made if Operations lists number %d: %v", e.Operation, e.Err)
}

// Unwrap returns Err.
func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// commitError classifies the error of a COMMIT. An answer of the server means that nothing was
// committed. Exception: the outcome is unknown if the server was shutting down.
func commitError(operation int64, err error) error {
	if pgdriver.IsUnanswered(err) {
		return &UnknownOutcomeError{Operation: operation, Err: err}
	}
	return fmt.Errorf("commit: %w", err)
}

// checkUnit checks the name of a consumer or of a unit.
func checkUnit(name string) error {
	if consumer, slots, ok := partition.Parse(name); ok && slots != partition.All {
		name = consumer
	}
	if err := ident.CheckConsumer(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// checkConsumer checks the name of a consumer. It refuses the name of a unit.
func checkConsumer(name string) error {
	if consumer := partition.Consumer(name); consumer != name {
		return fmt.Errorf("%w: it is a unit's name, and this takes a whole consumer: name %s", ErrInvalid, errtext.Value(consumer))
	}
	return checkUnit(name)
}

const maxQueueName = 1_000 // bytes; the index takes little more

// checkQueue checks the name of a queue.
func checkQueue(name string) error { return checkText("the queue's name", name, maxQueueName) }

// checkID checks the ID of a job or of a run.
func checkID(of string, id int64) error {
	if id < 1 {
		return fmt.Errorf("%w: the %s's ID is %d, they begin at 1", ErrInvalid, of, id)
	}
	return nil
}

func checkLimit(limit, most int) error {
	if limit < 1 || limit > most {
		return fmt.Errorf("%w: limit is %d, allowed is 1 to %d", ErrInvalid, limit, most)
	}
	return nil
}

func checkText(what, s string, limit int) error {
	switch {
	case strings.TrimSpace(s) == "":
		return fmt.Errorf("%w: %s is empty", ErrInvalid, what)
	case len(s) > limit:
		return fmt.Errorf("%w: %s has %d bytes, at most %d are kept", ErrInvalid, what, len(s), limit)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fmt.Errorf("%w: %s %s has a NUL or invalid UTF-8", ErrInvalid, what, errtext.Value(s))
	}
	return nil
}
