package worker

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store"
)

// NewSlogObserver returns an Observer that logs: what is wrong as Error or
// Warn, what changes as Info, every batch as Debug. nil stands for
// slog.Default().
//
// The messages name the event, and the keys stay the same. A worker with several
// such Observers of one logger, or with one and [WithSlog], logs everything once.
func NewSlogObserver(l *slog.Logger) Observer {
	if l == nil {
		l = slog.Default()
	}
	o := observerOf(l.Log)
	o.logger = l
	return o
}

// newWarner returns the Observer of a worker that was given none that logs. It leaves out the
// hooks that never warn and are called for each batch.
func newWarner(l *slog.Logger) Observer {
	o := NewSlogObserver(l)
	o.BatchStarted, o.BatchDone, o.Skipped, o.Woken = nil, nil, nil, nil
	return o
}

// newLoggerObserver returns an Observer that logs. A store.Logger has no
// warnings: they are errors.
func newLoggerObserver(l store.Logger) Observer {
	if l == nil {
		return Observer{logs: true}
	}
	if l, is := l.(interface{ Slog() *slog.Logger }); is {
		return NewSlogObserver(l.Slog())
	}
	l = protectLogger(l)
	return observerOf(func(ctx context.Context, level slog.Level, message string, keyvals ...any) {
		switch level {
		case slog.LevelDebug:
			l.Debug(ctx, message, keyvals...)
		case slog.LevelInfo:
			l.Info(ctx, message, keyvals...)
		default:
			l.Error(ctx, message, keyvals...)
		}
	})
}

// logFunc writes one line.
type logFunc func(ctx context.Context, level slog.Level, message string, keyvals ...any)

func (log logFunc) debug(message string, keyvals ...any) { log.line(slog.LevelDebug, message, keyvals) }
func (log logFunc) info(message string, keyvals ...any)  { log.line(slog.LevelInfo, message, keyvals) }
func (log logFunc) warn(message string, keyvals ...any)  { log.line(slog.LevelWarn, message, keyvals) }
func (log logFunc) error(message string, keyvals ...any) { log.line(slog.LevelError, message, keyvals) }

// line puts errors on one line. The stack of a panic that is among them follows
// at the end.
func (log logFunc) line(level slog.Level, message string, keyvals []any) {
	for i, v := range keyvals {
		err, is := v.(error)
		if !is {
			continue
		}
		keyvals[i] = errtext.Of(err)
		if p := (*PanicError)(nil); errors.As(err, &p) {
			keyvals = append(keyvals, "stack", linesOf(p.Stack))
		}
	}
	log(context.Background(), level, message, keyvals...)
}

// observerOf returns an Observer whose every hook writes one line.
func observerOf(log logFunc) Observer {
	var o Observer
	log.workers(&o)
	log.consumers(&o)
	log.batches(&o)
	log.letters(&o)
	log.surroundings(&o)
	o.logs = true
	return o
}

func (log logFunc) workers(o *Observer) {
	o.WorkerStarted = func(w WorkerInfo) { log.info("worker started", "worker_id", w.ID, "consumers", w.Consumers) }
	o.WorkerStopped = func(w WorkerInfo) {
		if w.Err != nil {
			log.error("worker stopped", "worker_id", w.ID, "error", w.Err)
			return
		}
		if w.Drained {
			log.info("worker drained, as an operator asked: it waits for the program to stop it", "worker_id", w.ID)
			return
		}
		log.info("worker stopped", "worker_id", w.ID)
	}
	o.ShutdownTimedOut = func(w WorkerInfo) { log.error("shutdown timed out", "worker_id", w.ID, "error", w.Err) }
	o.WorkerReregistered = func(w WorkerInfo) { log.info("registered again, the worker's row was gone", "worker_id", w.ID) }
	o.StaleWorkersRemoved = func(rows int) { log.info("removed stale workers", "rows", rows) }
	o.RolesHidden = func(roles string) {
		log.warn("cannot see the transactions of some roles that append, taking them to be busy: GRANT pg_read_all_stats to this role", "roles", roles)
	}
	o.LeadershipChanged = func(c Leadership) {
		if c.Leader {
			log.info("gained leadership", "worker_id", c.ID)
			return
		}
		log.info("lost leadership", "worker_id", c.ID)
	}
	o.Rebalanced = func(a Rebalance) { log.info("rebalanced", "workers", a.Workers, "changes", a.Changes) }
	o.CoordinationFailed = func(err error) { log.error("coordination failed, retrying", "error", err) }
}

func (log logFunc) consumers(o *Observer) {
	o.ConsumerStarted = func(c ConsumerInfo) {
		log.info("consumer started", "consumer", c.Consumer, "types", c.Types, "start", c.Start, "batch_size", c.BatchSize, "partitions", c.Partitions)
	}
	o.ConsumerStopped = func(c ConsumerInfo) { log.info("consumer stopped", "consumer", c.Consumer) }
	o.ConsumerUnowned = func(c ConsumerInfo) { log.warn("consumer unowned", "consumer", c.Consumer, "reason", c.Reason) }
	o.ConsumerFailed = func(f ConsumerFailure) {
		log.error("consumer failed too often", "consumer", f.Consumer, "policy", f.Policy, "error", f.Err)
	}
	o.ConsumerPaused = func(c ConsumerInfo) { log.error("consumer paused", "consumer", c.Consumer, "reason", c.Reason) }
	o.ConsumerWaiting = func(w ConsumerWait) {
		log.warn("consumer waiting", "consumer", w.Consumer, "trouble", w.Trouble, "error", w.Err)
	}
	o.Recovered = func(r Recovery) {
		log.info("recovered", "trouble", r.Trouble, "consumer", r.Consumer, "detail", r.Detail, "lasted", r.Lasted, "was", r.Err)
	}
	o.Skipped = func(s Skip) {
		level := slog.LevelInfo
		if s.State == SkipVoid {
			level = slog.LevelDebug // a rolled-back append, everyday business
		}
		log.line(level, "positions skipped", []any{"consumer", s.Consumer, "first", s.First, "last", s.Last, "missing", s.Missing, "state", s.State})
	}
}

func (log logFunc) batches(o *Observer) {
	o.BatchStarted = func(b Batch) {
		log.debug("batch started", "consumer", b.Consumer, "attempt", b.Attempt, "events", b.Events, "from", b.From, "to", b.To)
	}
	o.BatchDone = func(b Batch) {
		log.debug("batch done", "consumer", b.Consumer, "attempt", b.Attempt, "events", b.Events, "late", b.Late, "from", b.From, "to", b.To,
			"read", b.Read, "guard", b.Guard, "handle", b.Handle, "commit", b.Commit, "overtaken", b.Overtaken, "error", b.Err)
	}
	o.HandlerOverdue = func(b Batch) {
		log.error("handler overdue, it ignores the end of its context", "consumer", b.Consumer, "attempt", b.Attempt, "first", b.First, "last", b.Last, "error", b.Err)
	}
	o.Retrying = func(r Retry) {
		level := slog.LevelWarn
		if r.Trouble == TroubleBatch && !r.ByHandler {
			level = slog.LevelInfo // a deadlock or a serialization failure
		}
		log.line(level, "batch failed, retrying", []any{"consumer", r.Consumer, "trouble", r.Trouble, "in_a_row", r.InARow, "pause", r.Pause, "by_handler", r.ByHandler, "error", r.Err})
	}
	o.Rescaled = func(r Rescaled) {
		log.info("consumer rescaled", "consumer", r.Consumer, "from", r.From, "to", r.To, "position", r.Position)
	}
	o.ScopeChanged = func(c ScopeChange) {
		log.warn("consumer selects something else", "consumer", c.Consumer, "from", c.From, "to", c.To, "position", c.Position)
	}
	o.DeadBatchEnded = func(b DeadBatch) {
		log.info("ended the batch of a dead worker", "consumer", b.Consumer, "dead_worker", b.Worker, "pid", b.PID)
	}
	o.TransactionEnded = func(e TransactionEnd) {
		message := "handler ended its transaction"
		if errors.Is(e.Err, ErrOutcomeUnknown) {
			message = "batch outcome unknown"
		}
		log.error(message, "consumer", e.Consumer, "from", e.From, "to", e.To, "error", e.Err)
	}
}

func (log logFunc) letters(o *Observer) {
	dead := func(message string) func(DeadLetter) {
		return func(d DeadLetter) {
			log.error(message, "consumer", d.Consumer, "position", d.Position, "event_id", d.EventID, "event_type", errtext.Word(d.EventType),
				"aggregate_type", errtext.Word(d.AggregateType), "aggregate_id", errtext.Word(d.AggregateID), "attempts", d.Attempts, "error", d.Error)
		}
	}
	o.DeadLettered = dead("event dead-lettered")
	o.DeadLetterFailed = dead("dead letter failed again")
}

// surroundings are the log, the database and the process.
func (log logFunc) surroundings(o *Observer) {
	o.FrontierBlocked = func(t BlockingTransaction) {
		log.warn("transaction stays open", "passed", t.Passed, "virtualtransaction", t.VirtualTransaction, "pid", t.PID, "gid", t.GID,
			"application_name", t.ApplicationName, "state", t.State, "age", t.Age, "remedy", t.Remedy())
	}
	o.FrontierFailed = func(err error) { log.error("cannot read the event log, retrying", "error", err) }
	o.NotifyFailed = func(err error) { log.error("notifications do not arrive", "error", err) }
	o.Woken = func(w Wakeup) { log.debug("woken", "source", w.Source) }
	o.PoolTooSmall = func(p PoolUse) {
		log.warn("pool too small, it closes connections that are needed again at once: raise db.SetMaxIdleConns", "closed", p.Closed, "within", p.Within, "recommended", p.Recommended)
	}
	o.PoolSwept = func(s PoolSweep) { log.error("closed dead connections of the pool", "idle", s.Idle, "alive", s.Alive) }
	o.TaskFailed = func(f TaskFailure) {
		level := slog.LevelWarn
		if f.Task == taskWatch || f.Task == taskAnnounce {
			level = slog.LevelDebug // each try fails while the database is away, which others say
		}
		log.line(level, "task failed", []any{"task", f.Task, "consumer", f.Consumer, "error", f.Err})
	}
	o.HookPanicked = func(p HookPanic) {
		log.error("hook panicked, going on; further panics of this hook are not reported", "hook", p.Hook, "panic", p.Panic, "stack", p.Stack)
	}
}
