package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
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
	refused   batch.Refused[int64] // jobs that the database does not let a claim take
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

// failed records whether a statement of the loop has failed. Refused jobs stay recorded.
func (s *shared) failed(err error) {
	err = errtext.Of(err)
	shown, refused := s.refused.Err(), s.refused.Len()
	if err != nil {
		shown, refused = err, 0
	}
	s.change(func(q *QueueStatus) { q.LastError, q.Refused = shown, refused })
	if shown == nil {
		s.observers.End(about(observe.ConditionQueue, s.name))
	} else {
		s.observers.Begin(about(observe.ConditionQueue, s.name), shown)
	}
	if err == nil {
		s.failures = 0
		return
	}
	s.failures++
	s.pausedTo = time.Now().Add(backoff.Session(s.failures))
	s.observers.Notify(observe.StatementFailed{Condition: observe.ConditionQueue, Queue: s.name, Err: err})
}

// refuse records a job that the database does not let the loop claim or start. It returns an error
// if too many jobs are refused.
func (s *shared) refuse(id int64, err error) error {
	err = errtext.Of(fmt.Errorf("jobs: claim of job %d: %w", id, s.refusal(id, err)))
	known, ok := s.refused.Add(id, err, time.Now())
	if !ok {
		return err
	}
	if !known {
		s.observers.Notify(observe.StatementFailed{Condition: observe.ConditionQueue, Queue: s.name, Row: id, Err: err})
	}
	return nil
}
