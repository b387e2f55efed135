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
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// CatchUp runs a worker until each consumer has handled and committed all events that were in
// the log at the call. Then it stops the worker. When CatchUp returns, no goroutine of the
// worker is running. A consumer that starts at the head then has its checkpoint there.
//
// The worker polls often, and stops at the first failure of a handler. CatchUp returns the
// failure, a [worker.ConsumerError]. The failure is [worker.ErrTransactionEnded] if a handler
// ended its transaction. CatchUp checks the transaction after each call.
//
// If a consumer is paused, CatchUp returns an error at once, which names the operator and the
// reason. The worker itself pauses a consumer whose checkpoint is above its log, as after
// TRUNCATE ... RESTART IDENTITY.
//
// A [consumer.Partitioned] runs in its partitions. Some of its first events may be handled
// before the split. Run its handler under -race.
//
// opts are applied after these settings. Under FailDeadLetter, an event that became a dead
// letter counts as handled. An event that waits for the replay of its aggregate does not count.
// If the replay fails, the event is a dead letter, and CatchUp returns nil.
//
// Give ctx a deadline. When ctx ends, the error names the events or the state that CatchUp
// awaited. A batch in flight then has a second to finish before it is rolled back.
func CatchUp(ctx context.Context, db *sql.DB, log store.Log, consumers []consumer.Consumer, opts ...worker.Option) error {
	opts = append(settings(), opts...)
	operator, err := ops.New(db, ops.WithNames(namesOf(opts)))
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
				err = context.Cause(ctx) // no other caller stops it
			}
			return fmt.Errorf("workertest: awaited %s: %w", awaited, err)
		case <-time.After(pollInterval):
		}
		status := w.Status() // read first: the tables are at least as recent as the status
		all, err := operator.Consumers(ctx)
		if err != nil || len(status.Consumers) == 0 {
			continue // the worker's status has the error
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

const pollInterval = 5 * time.Millisecond

// settings are the options for a worker that polls often and stops at the first failure.
func settings() []worker.Option {
	return []worker.Option{
		worker.WithDispatcherInterval(pollInterval),
		worker.WithPollInterval(pollInterval),
		worker.WithRebalanceInterval(10 * pollInterval),
		worker.WithMaxConsecutiveFailures(1),
		worker.WithShutdownTimeout(time.Second),
	}
}

// namesOf returns the names that the options give the tables.
func namesOf(opts []worker.Option) store.Names {
	c := worker.DefaultConfig()
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	return c.Names
}

// replaying describes the consumers whose events wait for the replay of their aggregate. It is
// empty if there are none.
func replaying(ctx context.Context, o *ops.Operator, s worker.Status) string {
	deadLetters, err := o.DeadLetters(ctx, "")
	if err != nil {
		return "the list of dead letters"
	}
	for _, l := range deadLetters {
		if l.Replay && slices.ContainsFunc(s.Consumers, func(c observe.ConsumerStatus) bool { return c.Consumer == l.Consumer }) {
			return fmt.Sprintf("that consumer %q has handled aggregate %s of type %s again (the event at position %d is next)", l.Consumer, errtext.Value(l.AggregateID), errtext.Value(l.AggregateType), l.Position)
		}
	}
	return ""
}

// paused returns an error that names a paused consumer and the reason, or nil.
func paused(all []ops.Consumer, s worker.Status) error {
	for _, o := range all {
		if !slices.ContainsFunc(s.Consumers, func(c observe.ConsumerStatus) bool { return c.Consumer == o.Name }) {
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

// unloaded describes a consumer that no registered worker runs, or that this worker has not
// loaded. It is empty if there is none. Only a worker that has loaded a checkpoint knows
// whether the checkpoint belongs to this log.
func unloaded(ctx context.Context, o *ops.Operator, all []ops.Consumer, s worker.Status, own uuid.UUID) string {
	workers, err := o.Workers(ctx)
	if err != nil {
		return "the list of workers"
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
		// An assignment may name a worker that has left, or this worker before it has started.
		for _, id := range by {
			if !slices.ContainsFunc(workers, func(w ops.Worker) bool { return w.ID == id && id != own }) {
				return fmt.Sprintf("that a worker begins with consumer %q", c.Consumer)
			}
		}
	}
	return ""
}

// missing describes the positions that the consumers have not reached yet, with the known
// reasons. It is empty if all have reached head.
func missing(all []ops.Consumer, s worker.Status, head int64) string {
	var what []string
	for i, c := range s.Consumers {
		name := c.Consumer
		if i > 0 && s.Consumers[i-1].Consumer == name {
			continue // another unit of it: its position is the last unit's
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
		if i := slices.IndexFunc(s.Consumers, func(part observe.ConsumerStatus) bool { return part.Consumer == name && part.LastError != nil }); i >= 0 {
			what = append(what, fmt.Sprintf("its last error: %v", s.Consumers[i].LastError))
		}
	}
	if len(what) > 0 && s.FrontierError == nil { // else Blocked is an old list
		for _, b := range s.Blocked {
			what = append(what, fmt.Sprintf("while a transaction stays open (application %q): %s", cmp.Or(b.ApplicationName, "unknown"), b.Remedy()))
		}
	}
	return strings.Join(what, ", ")
}
