package harness

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Error is a failure of the harness itself. It says nothing about the library: a run
// that ends with it is not judged, unless something broken was seen before.
type Error struct {
	Step  string        // what the harness did, "the copy of the server"
	Bound time.Duration // by when it had to be done, if that was exceeded; 0: it failed otherwise
	Err   error
}

// Error says what failed, by which bound, and the remedy.
func (e *Error) Error() string {
	if e.Bound == 0 {
		return fmt.Sprintf("harness: %s failed: %v; the server's log may say more", e.Step, e.Err)
	}
	return fmt.Sprintf("harness: %s took longer than %v: %v; run it again with less load on the machine", e.Step, e.Bound, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Failed returns an [Error] of a step that only the harness can fail at: to start, stop and copy a
// server. It returns nil, and an error that an [Error] explains already, as they are.
func Failed(step string, bound time.Duration, err error) error {
	if err == nil || Is(err) && Explain(err) != nil {
		return err
	}
	if !timedOut(err) {
		bound = 0
	}
	return &Error{Step: step, Bound: bound, Err: err}
}

// Statement returns an [Error] of a statement of the harness if the server did not answer in time,
// or could not be reached. It returns any other error as it is.
func Statement(step string, bound time.Duration, err error) error {
	if err == nil || !timedOut(err) && Explain(err) == nil {
		return err
	}
	return Failed(step, bound, err)
}

// Is reports whether an error is, or wraps, an [Error].
func Is(err error) bool { return of(err) != nil }

func of(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// Explain returns the [Error] that explains all of an error. Of joined errors, at any depth, each
// must be one, or say that the server could not be reached. Explain returns nil if something is
// left that the harness does not explain. A time-out of a call of the library is not explained: the
// library may hang.
func Explain(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var first *Error
		for _, part := range joined.Unwrap() {
			e := Explain(part)
			if e == nil {
				return nil
			}
			if first == nil || first.Step == connecting {
				first = e
			}
		}
		return first
	}
	if unreachable(err) {
		return &Error{Step: connecting, Err: err}
	}
	if inner := errors.Unwrap(err); inner != nil {
		return Explain(inner)
	}
	return nil
}

const connecting = "the connection to the server"

// timedOut reports whether the bound of a context, or the server's bound of a statement, was
// exceeded.
func timedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &pg) && pg.Code == "57014"
}

// unreachable reports whether no server answered, or its disk was full. A server without
// connections, memory or locks answered: the library may have taken them. unreachable judges err
// itself, not the errors that err wraps. Exception: a failed connection or login is judged by its
// cause.
func unreachable(err error) bool {
	switch e := err.(type) {
	case *pgconn.PgError:
		switch e.Code {
		case "53100", "57P01", "57P02", "57P03": // the disk is full; it shuts down, crashed, or starts
			return true
		}
		return strings.HasPrefix(e.Code, "08") || strings.HasPrefix(e.Code, "58") // connection, the system
	case *pgconn.ConnectError:
		var pg *pgconn.PgError
		if errors.As(err, &pg) { // it was there, and refused
			return unreachable(pg)
		}
		return !timedOut(err)
	case *net.OpError:
		return !timedOut(err)
	}
	return err == io.EOF || err == io.ErrUnexpectedEOF || err == driver.ErrBadConn || err == pgconn.ErrConnClosed
}
