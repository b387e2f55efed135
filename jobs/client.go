package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/awaited"
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Client enqueues, reads, cancels and awaits jobs. Any number of goroutines may use a client. A
// client owns no resources, so there is no need to close it.
type Client struct {
	db     pgdriver.Pool
	names  store.Names
	queue  *queue.Queue
	tables tables.Jobs
	err    error // of its options; every call returns it
	ends   awaited.Ends
}

// ClientOption is an option of [NewClient].
type ClientOption interface{ applyClient(*clientConfig) }

type clientConfig struct {
	names  store.Names
	notify string
}

// CommonOption is an option of workers and clients.
type CommonOption interface {
	Option
	ClientOption
}

type names store.Names

func (n names) applyClient(c *clientConfig) { c.names = store.Names(n) }
func (n names) apply(c *config)             { c.names = store.Names(n) }

// WithNames sets the names of the tables. Beside the table of jobs, a worker reads those of the
// checkpoints and of the audit of gaps, if they exist. From them the leader learns which keys of
// [Client.EnqueueFor] it may remove.
func WithNames(n store.Names) CommonOption { return names(n) }

type notifyString string

func (s notifyString) applyClient(c *clientConfig) { c.notify = string(s) }
func (s notifyString) apply(c *config)             { c.notify = string(s) }

// WithNotifyConnectionString is a direct connection string to the database. On this connection a
// worker listens for new jobs, and a client for the ends of jobs that Wait awaits. Without the
// option, both poll. The connection must not go through a proxy that pools transactions.
//
// Enqueueing notifies only while a worker of the queue is idle, since a notification slows down all
// commits of the server.
func WithNotifyConnectionString(s string) CommonOption { return notifyString(s) }

// NewClient makes a client. If an option is invalid, each call of the client returns the error.
func NewClient(db *sql.DB, opts ...ClientOption) *Client {
	var cfg clientConfig
	for _, o := range opts {
		if o != nil {
			o.applyClient(&cfg)
		}
	}
	c := &Client{db: pgdriver.NewPool(db), names: cfg.names}
	t, err := tables.ParseJobs(cfg.names)
	switch {
	case db == nil:
		c.err = errors.New("jobs: db is nil: open one with sql.Open")
	case err != nil:
		c.err = fmt.Errorf("jobs: WithNames: %w", err)
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

// Cancel cancels a job. A job that does not run ends at once. For a job that runs, the worker ends
// the context of the handler with [ErrCancelled]. A worker that listens does so at once, any other
// within its HeartbeatInterval. If the handler then returns an error, the job is cancelled. If the
// handler returns nil, the job has completed.
//
// Cancel returns the state of the job before the call. A finished job stays as it is. Cancel locks
// the row of the job until tx ends. If the run ends meanwhile, the worker stores the outcome after
// tx. If tx is nil or a *sql.DB, Cancel uses a transaction of its own.
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

// hidden returns ErrPrivileges if row-level security may have hidden rows of the tables. An error
// of the check itself is ignored.
func (c *Client) hidden(ctx context.Context, on Querier, tables ...ident.Table) error {
	if remedy, err := rights.Hidden(ctx, on, tables...); err == nil && remedy != "" {
		return fmt.Errorf("jobs: %w: %s", ErrPrivileges, remedy)
	}
	return nil
}
