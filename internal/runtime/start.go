package runtime

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/refusal"
	"github.com/pgfrontier/worker/observe"
)

// Start is what all workers check when they start.
type Start struct {
	Package   string        // the prefix of errors
	DB        pgdriver.Pool // its *sql.DB may be nil
	Least     int           // how many open connections the worker needs; 0: any number will do
	Further   string        // what takes further connections: "one more for every consumer"
	Locks     bool          // the worker needs locks of sessions
	Limit     time.Duration // bounds Reach; 0: no bound
	Option    string        // the option that sets Limit
	Observers *Observers
	Failed    func(error) // reports a failed try; nil: by observe.TaskFailed
}

// Reach runs a step of the start, and repeats it while the database cannot be reached.
func (s *Start) Reach(ctx context.Context, step func(context.Context) error) error {
	away := Subject{Condition: observe.ConditionDatabase}
	err := pgdriver.Reach(ctx, s.Package, s.Limit, func(err error) {
		err = errtext.Of(Explain(s.Package, err))
		s.Observers.Begin(away, err)
		switch {
		case ctx.Err() != nil:
		case s.Failed != nil:
			s.Failed(err)
		default:
			s.Observers.Notify(observe.TaskFailed{Worker: s.Observers.worker, Task: "start", Err: err})
		}
	}, step)
	switch {
	case err == nil:
		s.Observers.End(away)
	case errors.Is(err, refusal.ErrOutage):
		err = fmt.Errorf("%w (%s)", err, s.Option)
	}
	return err
}

// Validate returns the errors of the program's arguments, and of the size of the pool.
func (s *Start) Validate(arguments ...error) error {
	size := error(nil)
	if s.DB.DB == nil {
		size = errors.New("db is nil: open one with sql.Open")
	} else if n := s.DB.Stats().MaxOpenConnections; n > 0 && n < s.Least {
		size = fmt.Errorf("db allows %d open connections, a worker needs at least %d (and %s): raise db.SetMaxOpenConns (with pgxtx.DB, MaxConns of its pool)", n, s.Least, s.Further)
	}
	if err := errtext.Join(append([]error{size}, arguments...)...); err != nil {
		return fmt.Errorf("%s: %w: %w", s.Package, refusal.ErrInvalidConfig, err)
	}
	return nil
}

// Check checks the database for all workers, and then by own. lent reports whether the pool takes
// its connections from another pool.
func (s *Start) Check(ctx context.Context, own func(ctx context.Context, proxy pgdriver.Pooling, lent bool) error) error {
	return pgdriver.Checked(ctx, s.Package, s.DB.DB, func(ctx context.Context) error {
		proxy, lent, err := s.checkPooling(ctx)
		if err == nil {
			err = s.On(ctx, func(conn *sql.Conn) error {
				if err := pgdriver.CheckFormats(ctx, conn); err != nil {
					return err
				}
				return pgdriver.CheckWrites(ctx, conn)
			})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.Package, err)
		}
		return own(ctx, proxy, lent)
	})
}

// checkPooling refuses proxies and pools that break the worker. It needs two connections to detect
// a proxy.
func (s *Start) checkPooling(ctx context.Context) (proxy pgdriver.Pooling, lent bool, err error) {
	switch {
	case s.Least > 0:
		return s.DB.CheckPooling(ctx, s.Locks)
	case s.DB.Stats().MaxOpenConnections != 1:
		proxy, err = pgdriver.CheckProxy(ctx, s.DB, s.Locks)
	}
	return proxy, false, err
}

// On calls f with a connection of the pool.
func (s *Start) On(ctx context.Context, f func(conn *sql.Conn) error) error {
	conn, err := s.DB.Conn(ctx)
	if err != nil {
		return fmt.Errorf("take a connection: %w", err)
	}
	defer conn.Close()
	return f(conn)
}
