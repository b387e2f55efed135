package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

// The exit statuses.
const (
	exitDone    = 0
	exitRefused = 1 // or a check says no
	exitUnable  = 2 // wrong usage, or the database cannot be reached or used
	exitUnknown = 3 // the answer to COMMIT was lost
)

// statusError is an error with the exit status that it means. Without an error,
// everything has been said.
type statusError struct {
	code int
	error
}

func (e statusError) Unwrap() error { return e.error }

// saysNo ends the command after a check that has printed what it found.
var saysNo = statusError{code: exitRefused}

// usage is an error of who typed the command.
func usage(format string, args ...any) error {
	return statusError{exitUnable, fmt.Errorf(format, args...)}
}

// refuse is a refusal by the command itself.
func refuse(format string, args ...any) error {
	return statusError{exitRefused, fmt.Errorf(format, args...)}
}

// refusals are what package ops answers to a change or a question that makes no sense now.
var refusals = []error{ops.ErrNotFound, ops.ErrNoDeadLetter, ops.ErrUnchanged, ops.ErrExists}

func isRefusal(err error) bool {
	var settled *ops.NotSettledError
	var next *ops.NotNextError
	var stuck *ops.NotStuckError
	var registered *ops.RegisteredError
	var state *ops.StateError
	return slices.ContainsFunc(refusals, func(of error) bool { return errors.Is(err, of) }) ||
		errors.As(err, &settled) || errors.As(err, &next) || errors.As(err, &stuck) || errors.As(err, &registered) || errors.As(err, &state)
}

// judge gives an error its exit status. What is neither a refusal nor an unknown outcome is
// the command's inability: wrong arguments, the server, or the way to it.
func judge(err error) error {
	var status statusError
	var unknown *ops.UnknownOutcomeError
	var moved *ops.MovedError
	switch {
	case err == nil, errors.As(err, &status):
		return err
	case errors.As(err, &unknown):
		return statusError{exitUnknown, fmt.Errorf("%w; operation %d: pgfrontier operations, or jobs operations, lists it if the change was made: read it before you repeat the change", err, unknown.Operation)}
	case errors.As(err, &moved):
		return statusError{exitRefused, fmt.Errorf("%w; if a worker moves it, pause it first", err)}
	case isRefusal(err):
		return statusError{exitRefused, err}
	case errors.Is(err, context.DeadlineExceeded):
		return statusError{exitUnable, fmt.Errorf("%w: not done within --timeout; a change waits for the batch that a worker has in flight", err)}
	case errors.Is(err, migrations.ErrNotApplied), pgdriver.IsUndefined(err):
		return statusError{exitUnable, fmt.Errorf("%w; here --schema, --prefix and --table give other names, and migrate up makes the tables, with --jobs those of jobs; tables of a newer version want a newer pgfrontier", err)}
	case pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege && !errors.Is(err, worker.ErrPrivileges): // which says it
		return statusError{exitUnable, fmt.Errorf("%w; pgfrontier migrate grants, also with --jobs, prints what each role needs", err)}
	}
	return statusError{exitUnable, err}
}

// exitOf is the exit status that a judged error means.
func exitOf(err error) int {
	var status statusError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &status):
		return status.code
	}
	return exitUnable
}
