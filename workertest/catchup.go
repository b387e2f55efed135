package workertest

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

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
		all, err := operator.Consumers(ctx)
		status := w.Status()
		if err != nil || len(status.Consumers) == 0 {
			continue // what is wrong, the worker says
		}
		awaited = missing(all, status, head)
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
		if o.Paused != nil {
			what = append(what, fmt.Sprintf("it is paused by %q, because %s", o.Paused.By.Operator, errtext.Value(o.Paused.By.Reason)))
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
