package observe

import (
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
)

// PanicError is the error of a handler that has panicked. Its text names the line of the panic; the
// log has the whole stack.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return errtext.Line(fmt.Sprintf("the handler panicked%s: %s", errtext.Where(e.Stack), errtext.Panic(e.Value)))
}

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return errtext.Sound(err)
}
