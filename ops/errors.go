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
	"github.com/pgfrontier/worker/migrations"
)

var (
	// ErrInvalid wraps what is refused before the database is asked: an
	// operator, a reason, a name or a position that is out of range.
	ErrInvalid = errors.New("invalid argument")

	// ErrNoCheckpoint reports a consumer without a row in the checkpoints
	// table.
	ErrNoCheckpoint = errors.New("it has no row in the checkpoints table: check the name (Consumers lists them); a consumer gets its row when a worker that has code for it starts for the first time, and one that begins at the head when the transactions have ended that had drawn positions below it (Blockers lists them)")

	// ErrPaused reports a Pause of a consumer that is paused.
	ErrPaused = errors.New("it is paused already")

	// ErrNotPaused reports a Resume of a consumer that is not paused.
	ErrNotPaused = errors.New("it is not paused")

	// ErrAtPosition reports a Reset to the position where the consumer is.
	ErrAtPosition = errors.New("it is at this position already")

	// ErrNoEvents reports a Replay of an aggregate of which the consumer has passed no
	// event, and a ReplayTypes that finds none.
	ErrNoEvents = errors.New("it has passed no event of this aggregate: check the type and the id, and how far the consumer is (Consumers says)")

	// ErrNoBlocker reports a Terminate of a session that has ended its transaction.
	ErrNoBlocker = errors.New("it is no longer in the transaction that was shown: Blockers lists those that are open")

	// ErrNoWorker reports a DrainWorker of a worker that has no row.
	ErrNoWorker = errors.New("no such worker is registered: Workers lists those that are; a worker that stops takes its row away")

	// ErrDraining reports a DrainWorker of a worker that was asked to drain before, or that stops.
	ErrDraining = errors.New("it drains already")

	// ErrNoDeadLetter reports that the consumer has no dead letter at the
	// position.
	ErrNoDeadLetter = errors.New("it has no dead letter at this position: DeadLetters lists them; it may have been handled or discarded meanwhile")
)

// NotSettledError refuses a Reset to a position that is not known to be
// settled. Events may still appear below it, and would be lost.
type NotSettledError struct {
	To      int64
	Settled int64 // the highest position that a Reset may go forward to
}

func (e *NotSettledError) Error() string {
	return fmt.Sprintf("it cannot go forward to position %d: the log is known to be complete up to position %d only (running workers raise that about once a second, up to the oldest open transaction that may own positions): go no further than that, or try again later", e.To, e.Settled)
}

// NotNextError refuses a SkipEvent at a position where the consumer is not
// stuck.
type NotNextError struct {
	Position   int64
	Checkpoint int64
	// InDoubt reports that the consumer has passed the position while it was
	// in doubt, and that no event has appeared there yet.
	InDoubt bool
	// Next, NextID and NextType are the event that the consumer handles next,
	// zero if there is none.
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

// NotStuckError refuses a SkipEvent at the next event of a consumer that is not stuck there, as
// the worker says that runs it.
type NotStuckError struct {
	Position int64
	Worker   uuid.UUID
	Ago      time.Duration // since the worker said so, at its last heartbeat
	Stuck    int64         // where it is stuck; 0: nowhere
}

func (e *NotStuckError) Error() string {
	at := "not stuck: if the event has failed since, try again after the next heartbeat"
	switch {
	case e.Stuck > 0 && e.Stuck < e.Position:
		at = fmt.Sprintf("stuck at position %d: if the event at %d has failed since, try again after the next heartbeat", e.Stuck, e.Position)
	case e.Stuck > 0:
		at = fmt.Sprintf("stuck at position %d: what comes before that has not failed; give the worker WithBatchSize(1), and skip %d when it comes next", e.Stuck, e.Stuck)
	}
	return fmt.Sprintf("position %d cannot be skipped: worker %s, which runs the consumer, said %v ago that it is %s; to skip the event all the same, Pause the consumer first", e.Position, e.Worker, e.Ago.Round(time.Millisecond), at)
}

// UnknownOutcomeError reports that the answer to a COMMIT was lost: the change
// was made, or it was not. Look before repeating it.
type UnknownOutcomeError struct {
	// Operation is the ID that Operations lists if the change was made.
	Operation int64
	Err       error
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("the answer to COMMIT was lost, so the change may have been made or not: it was made if Operations lists number %d: %v", e.Operation, e.Err)
}

// Unwrap gives the cause.
func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// commitError judges the error of a COMMIT: the server's own refusal is
// certain, unless it is that of a server which is going down.
func commitError(operation int64, err error) error {
	if pgdriver.IsUnanswered(err) {
		return &UnknownOutcomeError{Operation: operation, Err: err}
	}
	return fmt.Errorf("commit: %w", err)
}

// explain adds the remedy to the error of a database that lacks our tables.
func explain(err error) error {
	if pgdriver.IsUndefined(err) {
		return fmt.Errorf("%w: give New the table names of the workers, or apply the migrations: %w", migrations.ErrNotApplied, err)
	}
	return err
}

// By says who changes something, and why. Both are needed.
type By struct {
	Operator string // a person, or a program; at most 200 bytes
	Reason   string // at most 2,000 bytes
}

const (
	maxOperator = 200 // bytes
	maxReason   = 2_000
)

func (b By) check() error {
	return errtext.Join(checkText("By.Operator", b.Operator, maxOperator), checkText("By.Reason", b.Reason, maxReason))
}

// checkUnit checks the name of a consumer, or of a unit of one.
func checkUnit(name string) error {
	if consumer, slots, ok := partition.Parse(name); ok && slots != partition.All {
		name = consumer
	}
	if err := ident.CheckConsumer(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// checkConsumer also refuses the name of a unit, where only a whole consumer will do.
func checkConsumer(name string) error {
	if consumer := partition.Consumer(name); consumer != name {
		return fmt.Errorf("%w: it is a unit's name, and this takes a whole consumer: name %s", ErrInvalid, errtext.Value(consumer))
	}
	return checkUnit(name)
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

// Pause says since when a consumer is paused, by whom and why.
type Pause struct {
	Since time.Time
	By    By
}
