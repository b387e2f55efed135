package console

import (
	"context"
	"errors"
	"net/http"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

// refusal is an answer that says why there is no page.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// failed is the data of the page of a failure.
type failed struct {
	Status int
	Error  string
	Hint   string `json:",omitempty"`
}

const (
	hintMoved = "Nothing was changed. The state changed since. Go back, read it again, and decide again."
	hintAway  = "The database did not answer in time, or a batch kept what was to be changed. Nothing was changed. Try again: the workers go on by themselves when the database is back."
	hintFull  = "The server takes no further connection. Nothing was changed. End idle sessions, or raise the limit: of the role, the database or the server."
	hintReads = "The server takes no changes: it is a standby, or was made read-only. Nothing was changed. Open a console that is connected to the primary."
	hintRole  = "The database role of the console lacks a right: the documentation of the operations says which ones an operator's role has."
)

// judge returns the status and the hint that answer an error.
func judge(err error) (status int, hint string) {
	var refused *refusal
	var unknown *ops.UnknownOutcomeError
	var registered *ops.RegisteredError
	var stuck *ops.NotStuckError
	switch {
	case errors.As(err, &refused):
		return refused.status, ""
	case errors.As(err, &unknown):
		return http.StatusServiceUnavailable, "The answer of the database was lost. Read the operations before you repeat it."
	case errors.As(err, &registered), errors.As(err, &stuck):
		return http.StatusConflict, "Nothing was changed."
	case isConflict(err):
		return http.StatusConflict, hintMoved
	case errors.Is(err, ops.ErrInvalid):
		return http.StatusBadRequest, ""
	case errors.Is(err, ops.ErrNotFound):
		return http.StatusNotFound, ""
	case errors.Is(err, migrations.ErrNotApplied):
		return http.StatusNotFound, "Tables of an older version want the migrations first, and those of a newer version a newer console. An application that uses only events, or only jobs, does not have the tables of the other."
	case pgdriver.SQLState(err) == pgdriver.TooManyConnections:
		return http.StatusServiceUnavailable, hintFull
	case isAny(err, context.DeadlineExceeded, context.Canceled), pgdriver.IsConnectionLoss(err), pgdriver.IsPoolClosed(err):
		return http.StatusServiceUnavailable, hintAway
	case pgdriver.SQLState(err) == pgdriver.ReadOnlyTransaction:
		return http.StatusServiceUnavailable, hintReads
	case pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege:
		return http.StatusInternalServerError, hintRole
	}
	return http.StatusInternalServerError, ""
}

func isConflict(err error) bool {
	var moved *ops.MovedError
	var next *ops.NotNextError
	var settled *ops.NotSettledError
	var state *ops.StateError
	return errors.As(err, &moved) || errors.As(err, &next) || errors.As(err, &settled) || errors.As(err, &state) ||
		isAny(err, errOther, ops.ErrUnchanged, ops.ErrExists, ops.ErrNoDeadLetter)
}

func isAny(err error, these ...error) bool {
	for _, e := range these {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// errOther refuses a change whose record would differ from the preview.
var errOther = errors.New("it would do something else now than what was shown")
