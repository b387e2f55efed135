package jobs

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/pgfrontier/worker/internal/awaited"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/tables"
)

// Client enqueues jobs and looks what becomes of them. Any number of goroutines may
// use it. It owns nothing: there is no need to close it.
type Client struct {
	db     pgdriver.Pool
	table  string
	queue  *queue.Queue
	tables tables.Jobs
	err    error // of its options, told by every call
	ends   awaited.Ends
}

// ClientOption is an option of [NewClient].
type ClientOption interface{ applyClient(*clientConfig) }

type clientConfig struct{ table, notify string }

// CommonOption is an option of workers and clients.
type CommonOption interface {
	Option
	ClientOption
}

type table string

func (t table) applyClient(c *clientConfig) { c.table = string(t) }
func (t table) apply(c *config)             { c.table = string(t) }

// WithTable names the table of jobs, "jobs" by default, or "schema.jobs". All
// other tables stand beside it and are named after it. Migrations know it as
// JobsTable.
func WithTable(name string) CommonOption { return table(name) }

type notifyString string

func (s notifyString) applyClient(c *clientConfig) { c.notify = string(s) }
func (s notifyString) apply(c *config)             { c.notify = string(s) }

// WithNotifyConnectionString is a direct connection to the database, on which the
// worker listens for new jobs, and a client for the ends of jobs that Wait awaits.
// Without one both poll. It must not go through a proxy that pools transactions.
func WithNotifyConnectionString(s string) CommonOption { return notifyString(s) }

// NewClient makes a client. What is wrong with its options, each call returns.
func NewClient(db *sql.DB, opts ...ClientOption) *Client {
	var cfg clientConfig
	for _, o := range opts {
		if o != nil {
			o.applyClient(&cfg)
		}
	}
	c := &Client{db: pgdriver.NewPool(db), table: cmp.Or(cfg.table, tables.DefaultJobs)}
	t, err := tables.ParseJobs(cfg.table, "WithTable")
	switch {
	case db == nil:
		c.err = errors.New("jobs: db is nil: open one with sql.Open")
	case err != nil:
		c.err = fmt.Errorf("jobs: %w", err)
	case cfg.notify != "":
		if err := listen.Check(cfg.notify); err != nil {
			c.err = fmt.Errorf("jobs: WithNotifyConnectionString: %w", err)
		}
	}
	c.queue, c.tables = queue.New(t), t
	c.ends.Notify, c.ends.Channel = cfg.notify, func(ctx context.Context) (string, error) {
		_, ends, err := c.queue.Channels(ctx, c.db)
		return ends, err
	}
	return c
}

// Table returns the name of the table of jobs.
func (c *Client) Table() string { return c.table }

// Cancel ends a job that does not run. Of one that runs it ends the context, with
// [ErrCancelled], as soon as its worker looks: at once if that listens, or else
// within its HeartbeatInterval. A handler that then returns an error is cancelled;
// one that returns nil has completed its job.
//
// It returns the state in which it found the job: of an unfinished one, what it was
// before; a finished one stays as it is. The row of the job is locked until the end of tx. If the job ends meanwhile,
// what became of it is stored after that. If tx is nil or a *sql.DB, Cancel has a transaction
// of its own.
func (c *Client) Cancel(ctx context.Context, tx Querier, id int64) (was State, err error) {
	if c.err != nil {
		return "", c.err
	}
	err = c.on(ctx, tx, true, func(on Querier) error {
		state, err := c.queue.Cancel(ctx, on, id)
		switch {
		case err != nil:
			return err
		case state == "":
			info, err := c.get(ctx, on, id)
			was = info.State
			return err
		case State(state) == StateRunning:
			err = changes.Wake(ctx, on, c.tables.Changes)
		}
		was = State(state)
		return err
	})
	return was, errtext.Of(err)
}

// isNil reports a nil interface, and a nil pointer in one.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Interface, reflect.Chan:
		return r.IsNil()
	}
	return false
}
