package jobs

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// shared is what the parts of a queue's loop share. Only the goroutine of the loop uses it.
type shared struct {
	*env
	*servedQueue
	cfg     *config
	kinds   []string      // that this worker handles
	looping chan struct{} // bounds the statements of the loops

	claimable bool      // there may be more jobs to claim
	pausedTo  time.Time // after a failure: no claim before this time
	failures  int
}

// mostLooping bounds the connections that the loops of all queues use at once: a worker of a
// thousand queues would open as many when it starts.
const mostLooping = 32

// on is [env.on] for the statements of a loop, which take turns.
func (s *shared) on(ctx context.Context, f func(conn *sql.Conn) error) error {
	select {
	case s.looping <- struct{}{}:
		defer func() { <-s.looping }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return s.env.on(ctx, f)
}

// onLoop is [shared.on] for statements with an answer.
func onLoop[T any](ctx context.Context, s *shared, f func(conn *sql.Conn) (T, error)) (answer T, err error) {
	err = s.on(ctx, func(conn *sql.Conn) (err error) {
		answer, err = f(conn)
		return err
	})
	return answer, err
}

// failed records whether a statement of the loop has failed.
func (s *shared) failed(err error) {
	err = errtext.Of(err)
	s.change(func(s *QueueStatus) { s.LastError = err })
	if err == nil {
		s.failures = 0
		s.observers.End(about(observe.ConditionQueue, s.name))
		return
	}
	s.failures++
	s.pausedTo = time.Now().Add(backoff.Session(s.failures))
	s.observers.Begin(about(observe.ConditionQueue, s.name), err)
	s.observers.Notify(observe.StatementFailed{Condition: observe.ConditionQueue, Queue: s.name, Err: err})
}
