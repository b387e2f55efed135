package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// leaveTimeout bounds the last statements when a worker stops.
const leaveTimeout = 5 * time.Second

// env is what the parts of a worker share: the database, and the observers.
type env struct {
	source    observe.Worker // names the worker in events
	db        pgdriver.Pool
	pool      *runtime.Pool
	limit     time.Duration // bounds a statement of the worker's own
	observers *runtime.Observers

	// The start sets these fields.
	queue  *queue.Queue
	tables tables.Jobs
}

// on runs statements of the worker's own on a connection of the pool.
func (e *env) on(ctx context.Context, f func(conn *sql.Conn) error) error {
	return e.pool.On(ctx, e.limit, f)
}

// planned sends statements of the worker's own through a connection, or its transaction.
func (e *env) planned(conn *sql.Conn, on Querier) Querier { return e.db.Plans.On(conn, on) }

// exec executes a statement of the worker's own.
func (e *env) exec(ctx context.Context, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	return e.on(ctx, func(conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, query, args...)
		return err
	})
}

// task runs the statements of a loop of the leader, and notifies an error as [observe.TaskFailed].
func (e *env) task(ctx context.Context, t *watchdog.Iteration, name string, f func(ctx context.Context, conn *sql.Conn) error) {
	t.Begin()
	defer t.End()
	bounded, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	err := e.on(bounded, func(conn *sql.Conn) error { return f(bounded, conn) })
	if ctx.Err() == nil {
		e.taskFailed(name, err)
	}
}

func (e *env) taskFailed(task string, err error) {
	if err != nil {
		e.observers.Notify(observe.TaskFailed{Worker: e.source, Task: task, Err: errtext.Of(err)})
	}
}

// refusal returns why the database refuses to change a job, and the remedy.
func (e *env) refusal(id int64, err error) error {
	if pgdriver.SQLState(err) == pgdriver.UniqueViolation {
		return e.queue.ExplainDuplicate(id, err)
	}
	if pgdriver.SQLState(err) == pgdriver.LockNotAvailable {
		return fmt.Errorf("another transaction has locked it, and others go on: %w", errtext.Of(err))
	}
	return fmt.Errorf("the database refuses it, and others go on: mend what refuses it, such as a constraint or a trigger of %s or %s: %w", e.tables.Jobs, e.tables.History, errtext.Of(err))
}

// about returns the subject of a condition of a queue, or of the worker if queue is empty.
func about(condition observe.Condition, queue string) runtime.Subject {
	return runtime.Subject{Condition: condition, Queue: queue}
}
