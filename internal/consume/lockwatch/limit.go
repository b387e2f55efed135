// Package lockwatch watches statements and handlers that wait.
package lockwatch

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// ErrNoAnswer is the error of a statement that exceeded its time limit.
var ErrNoAnswer error = unanswered{}

type unanswered struct{}

func (unanswered) Error() string        { return "no answer, gave up the connection" }
func (unanswered) Is(target error) bool { return target == pgdriver.ErrSilent }

// NoAnswer returns an [ErrNoAnswer] that names the limit.
func NoAnswer(limit time.Duration) error { return fmt.Errorf("%w after %v", ErrNoAnswer, limit) }

// WithCause adds the cause of bound to err if bound ended the statement and around did not end.
func WithCause(bound, around context.Context, err error) error {
	if err != nil && around.Err() == nil && bound.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(bound), err)
	}
	return err
}
