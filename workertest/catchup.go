package workertest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// CatchUp runs a worker until each of the consumers has handled, and
// committed, all that the log holds when CatchUp is called. Then it stops the
// worker. When it returns, nothing of the worker is running any more. A
// consumer that begins at the head has its place there afterwards.
//
// The worker polls often, and ends at the first failure of a handler. CatchUp
// returns that failure, a [worker.ConsumerError]. It is
// [worker.ErrTransactionEnded] if a handler ended its transaction, in whatever
// way: the transaction is checked after each call.
//
// A paused consumer handles nothing, so CatchUp returns an error at once, which says who has
// paused it and why. The worker itself pauses a consumer whose checkpoint is above its log, as
// after TRUNCATE ... RESTART IDENTITY.
//
// A [consumer.Partitioned] runs in its partitions, some of its first events perhaps
// before they are made. Let -race watch its handler.
//
// opts are applied after these settings. Under FailDeadLetter, an event that
// went to the dead letters counts as handled. One that waits for the replay of its
// aggregate does not; if the replay fails, it is a dead letter, and CatchUp returns nil.
//
// Give ctx a deadline. When ctx ends, the error names what was awaited. A
// batch in hand then has a second to finish, before its context ends and it is
// rolled back.
func CatchUp(ctx context.Context, db *sql.DB, log store.Log, consumers []consumer.Consumer, opts ...worker.Option) error {
	opts = append(settings(), opts...)
	operator, err := ops.New(db, tablesOf(opts))
	if err != nil {
		return fmt.Errorf("workertest: %w", err)
	}
	head, err := log.GetLatestGlobalPosition(ctx, db)
	if err != nil {
		return fmt.Errorf("workertest: head of the log: %w", err)
	}
	w := worker.New(db, log, watch(consumers), opts...)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	for awaited := "that the worker starts"; ; {
		select {
		case err := <-ended:
			if err == nil {
				err = context.Cause(ctx) // nobody else stops it
			}
			return fmt.Errorf("workertest: awaited %s: %w", awaited, err)
		case <-time.After(lookEvery):
		}
		status := w.Status() // first: what it shows as loaded, the tables show, too
		all, err := operator.Consumers(ctx)
		if err != nil || len(status.Consumers) == 0 {
			continue // what is wrong, the worker says
		}
		if err := paused(all, status); err != nil {
			w.Stop()
			return errors.Join(err, <-ended)
		}
		awaited = missing(all, status, head)
		if awaited == "" {
			awaited = unloaded(ctx, operator, all, status, w.ID())
		}
		if awaited == "" {
			awaited = replaying(ctx, operator, status)
		}
		if awaited == "" {
			w.Stop()
			return <-ended
		}
	}
}

const lookEvery = 5 * time.Millisecond

// settings make a worker quick and its end early.
func settings() []worker.Option {
	return []worker.Option{
		worker.WithDispatcherInterval(lookEvery),
		worker.WithPollInterval(lookEvery),
		worker.WithRebalanceInterval(10 * lookEvery),
		worker.WithMaxConsecutiveFailures(1),
		worker.WithShutdownTimeout(time.Second),
	}
}

// tablesOf are the names that the options give the tables.
func tablesOf(opts []worker.Option) *migrations.Config {
	c := worker.DefaultConfig()
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	return &migrations.Config{
		WorkerNodesTable: c.WorkerNodesTable, ConsumerAssignmentsTable: c.ConsumerAssignmentsTable,
		ConsumerCheckpointsTable: c.ConsumerCheckpointsTable, ConsumerGapSkipsTable: c.ConsumerGapSkipsTable,
		LeaderElectionTable: c.LeaderElectionTable,
	}
}

// replaying says which of the consumers have events that wait for the replay of their
// aggregate; it is empty if none has.
func replaying(ctx context.Context, o *ops.Operator, s worker.Status) string {
	letters, err := o.DeadLetters(ctx, "")
	if err != nil {
		return "a look at the dead letters"
	}
	for _, l := range letters {
		if l.Replay && slices.ContainsFunc(s.Consumers, func(c worker.ConsumerStatus) bool { return c.Consumer == l.Consumer }) {
			return fmt.Sprintf("that consumer %q has handled aggregate %s of type %s again (the event at position %d is next)", l.Consumer, errtext.Value(l.AggregateID), errtext.Value(l.AggregateType), l.Position)
		}
	}
	return ""
}

// paused says which of the consumers is paused, and why; nil if none is.
func paused(all []ops.Consumer, s worker.Status) error {
	for _, o := range all {
		if !slices.ContainsFunc(s.Consumers, func(c worker.ConsumerStatus) bool { return c.Consumer == o.Name }) {
			continue
		}
		name, p := o.Name, o.Paused
		for _, u := range o.Units {
			if p == nil {
				name, p = u.Name, u.Paused
			}
		}
		if p != nil {
			return fmt.Errorf("workertest: consumer %q is paused by %q, because %s: resume it (ops.Operator.Resume), or test on a database of its own", name, p.By.Operator, errtext.Value(p.By.Reason))
		}
	}
	return nil
}

// unloaded says which consumer no registered worker runs, or which one this worker has not
// loaded; it is empty if there is none. Only a worker that has loaded a checkpoint knows whether
// it is one of this log.
func unloaded(ctx context.Context, o *ops.Operator, all []ops.Consumer, s worker.Status, own uuid.UUID) string {
	workers, err := o.Workers(ctx)
	if err != nil {
		return "a look at the workers"
	}
	for _, c := range s.Consumers {
		if c.Assigned {
			if c.Lag == nil {
				return fmt.Sprintf("that the worker loads the progress of %q", c.Name)
			}
			continue
		}
		i := slices.IndexFunc(all, func(o ops.Consumer) bool { return o.Name == c.Consumer })
		by := []uuid.UUID{all[i].Worker}
		if len(all[i].Units) > 0 {
			by = nil
			for _, u := range all[i].Units {
				by = append(by, u.Worker)
			}
		}
		// An assignment may name a worker that has left, or this one, which has not begun yet.
		for _, id := range by {
			if !slices.ContainsFunc(workers, func(w ops.Worker) bool { return w.ID == id && id != own }) {
				return fmt.Sprintf("that a worker begins with consumer %q", c.Consumer)
			}
		}
	}
	return ""
}

// missing says what the consumers have not reached yet, and why as far as that
// shows; it is empty if there is nothing.
func missing(all []ops.Consumer, s worker.Status, head int64) string {
	var what []string
	for i, c := range s.Consumers {
		name := c.Consumer
		if i > 0 && s.Consumers[i-1].Consumer == name {
			continue // another part of it: its position is that of the last one
		}
		i := slices.IndexFunc(all, func(o ops.Consumer) bool { return o.Name == name })
		if i < 0 {
			what = append(what, fmt.Sprintf("that consumer %q gets its first checkpoint", name))
			continue
		}
		o := all[i]
		switch {
		case o.Position < head:
			what = append(what, fmt.Sprintf("that consumer %q reaches position %d (it is at %d)", name, head, o.Position))
		case o.OpenRanges > 0:
			what = append(what, fmt.Sprintf("that consumer %q has no position in doubt (it has %d ranges)", name, o.OpenRanges))
		default:
			continue
		}
		if i := slices.IndexFunc(s.Consumers, func(part worker.ConsumerStatus) bool { return part.Consumer == name && part.LastError != nil }); i >= 0 {
			what = append(what, fmt.Sprintf("its last error: %v", s.Consumers[i].LastError))
		}
	}
	if len(what) > 0 {
		for _, b := range s.Blocked {
			what = append(what, fmt.Sprintf("while a transaction stays open (application %q): %s", cmp.Or(b.ApplicationName, "unknown"), b.Remedy()))
		}
	}
	return strings.Join(what, ", ")
}
