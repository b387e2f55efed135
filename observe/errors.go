package observe

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
)

// ConsumerError names the consumer that failed, the event and the cause.
type ConsumerError struct {
	Consumer  string
	Failures  int       // in a row, at Position if that is not 0
	Position  int64     // of the event that was being handled; 0: none
	EventID   uuid.UUID // of that event
	EventType string    // of that event
	Err       error     // the cause
}

func (e *ConsumerError) Error() string {
	where := ""
	if e.Position > 0 {
		where = fmt.Sprintf(" at position %d (event %s, type %s)", e.Position, e.EventID, errtext.Value(e.EventType))
	}
	return errtext.Line(fmt.Sprintf("worker: consumer %q failed%s, %d in a row: %v", e.Consumer, where, e.Failures, errtext.Of(e.Err)))
}

// Unwrap returns the cause.
func (e *ConsumerError) Unwrap() error { return e.Err }

// PanicError is the error of a handler that has panicked. Its text names the line of the
// panic. The log has the whole stack.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return errtext.Line(fmt.Sprintf("the handler panicked%s: %s", errtext.Where(e.Stack), errtext.Panic(e.Value)))
}

// Code returns "PANIC", jobs.CodePanic.
func (e *PanicError) Code() string { return "PANIC" }

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return errtext.Sound(err)
}
