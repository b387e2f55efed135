package jobs

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/queue"
)

// Info is a job as stored in the database. Its times are UTC, and between store.EarliestTime and
// store.LatestTime, whatever wrote the row.
type Info struct {
	Header
	State      State
	Args       json.RawMessage
	CreatedAt  time.Time
	GoodUntil  *time.Time // nil: it does not expire
	StartedAt  *time.Time // start of the current or last run
	Worker     uuid.UUID  // worker of that run
	FinishedAt *time.Time
	Code       string // of the last error
	Error      string
	Result     json.RawMessage // nil: none

	// Attempts are the latest runs that did not finish the job, the newest first, at most a
	// hundred. The table keeps a thousand.
	Attempts []Attempt
}

// Attempt is a run that did not finish its job.
type Attempt struct {
	Number    int
	Worker    uuid.UUID
	StartedAt *time.Time // nil: it was claimed and had not started
	EndedAt   time.Time
	Outcome   string // error, snoozed, released or lost
	Code      string
	Error     string
}

// Get returns a job. It returns [ErrNotFound] if the job was not enqueued, or has finished longer
// ago than finished jobs are kept. It returns [ErrPrivileges] if row-level security may hide the
// job from the role.
func (c *Client) Get(ctx context.Context, id int64) (Info, error) {
	if c.err != nil {
		return Info{}, c.err
	}
	info, err := c.get(ctx, c.db, id)
	return info, errtext.Of(err)
}

func (c *Client) get(ctx context.Context, on Querier, id int64) (Info, error) {
	f, err := c.queue.Find(ctx, on, id)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Info{}, cmp.Or(c.hidden(ctx, on, c.tables.Jobs, c.tables.History), fmt.Errorf("%w: %d", ErrNotFound, id))
	case err != nil:
		return Info{}, err
	}
	return infoOf(f), nil
}

func infoOf(f queue.Found) Info {
	i := Info{
		Header: headerOf(f.Job, f.Queue, f.Most), State: State(f.State), Args: f.Args, CreatedAt: f.CreatedAt,
		GoodUntil: f.GoodUntil, StartedAt: f.StartedAt, Worker: f.Worker, FinishedAt: f.FinishedAt,
		Code: f.Code, Error: f.Error, Result: f.Result,
	}
	for _, a := range f.Attempts {
		i.Attempts = append(i.Attempts, Attempt(a))
	}
	if len(i.Attempts) > 0 && i.Code == "" && i.Error == "" {
		i.Code, i.Error = i.Attempts[0].Code, i.Attempts[0].Error
	}
	return i
}

// Count is the number of jobs of a queue in a state.
type Count struct {
	Queue string
	State State
	Jobs  int64
	More  bool // more than Jobs: counting stops at 10,000 per state, and for available jobs per priority
}

// Counts counts the unfinished jobs per queue. Its cost is bounded, however many jobs there are.
// For finished jobs see [Client.Get] and package ops.
func (c *Client) Counts(ctx context.Context) ([]Count, error) {
	if c.err != nil {
		return nil, c.err
	}
	tallies, err := c.queue.Counts(ctx, c.db)
	if err == nil && len(tallies) == 0 {
		err = c.hidden(ctx, c.db, c.tables.Jobs)
	}
	if err != nil {
		return nil, errtext.Of(err)
	}
	all := make([]Count, len(tallies))
	for i, t := range tallies {
		all[i] = Count{Queue: t.Queue, State: State(t.State), Jobs: t.Jobs, More: t.More}
	}
	return all, nil
}

// LogEntry is an entry that a handler has logged with [Job.Log].
type LogEntry struct {
	Attempt int
	At      time.Time
	Entry   json.RawMessage
}

// Logs returns the entries that the runs of a job have logged, in order: the first thousand.
func (c *Client) Logs(ctx context.Context, id int64) ([]LogEntry, error) {
	if c.err != nil {
		return nil, c.err
	}
	found, err := c.queue.Logs(ctx, c.db, id)
	if err == nil && len(found) == 0 {
		err = c.hidden(ctx, c.db, c.tables.Logs)
	}
	if err != nil {
		return nil, errtext.Of(err)
	}
	all := make([]LogEntry, len(found))
	for i, l := range found {
		all[i] = LogEntry(l)
	}
	return all, nil
}
