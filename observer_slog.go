package worker

import (
	"context"
	"log/slog"

	"github.com/pgfrontier/worker/internal/errtext"
)

// NewSlogObserver returns an Observer that logs: what is wrong as Error or
// Warn, what changes as Info, every batch as Debug.
func NewSlogObserver(l *slog.Logger) Observer {
	log := func(level slog.Level, message string, attributes ...any) {
		l.Log(context.Background(), level, message, attributes...)
	}
	return Observer{
		WorkerStarted: func(w WorkerInfo) { log(slog.LevelInfo, "worker started", "worker_id", w.ID) },
		WorkerStopped: func(w WorkerInfo) {
			if w.Err != nil {
				log(slog.LevelError, "worker stopped", "worker_id", w.ID, "error", w.Err)
				return
			}
			log(slog.LevelInfo, "worker stopped", "worker_id", w.ID)
		},
		LeadershipChanged: func(c Leadership) { log(slog.LevelInfo, "leadership changed", "worker_id", c.ID, "leader", c.Leader) },
		ConsumerStarted:   func(c ConsumerInfo) { log(slog.LevelInfo, "consumer started", "consumer", c.Consumer) },
		ConsumerStopped:   func(c ConsumerInfo) { log(slog.LevelInfo, "consumer stopped", "consumer", c.Consumer) },
		ConsumerUnowned: func(c ConsumerInfo) {
			log(slog.LevelWarn, "nobody runs a consumer", "consumer", c.Consumer, "reason", c.Reason)
		},
		ConsumerPaused: func(c ConsumerInfo) {
			log(slog.LevelError, "consumer paused", "consumer", c.Consumer, "reason", c.Reason)
		},
		BatchStarted: func(b Batch) {
			log(slog.LevelDebug, "batch started", "consumer", b.Consumer, "attempt", b.Attempt, "events", b.Events, "from", b.From, "to", b.To)
		},
		BatchDone: func(b Batch) {
			log(slog.LevelDebug, "batch done", "consumer", b.Consumer, "attempt", b.Attempt, "events", b.Events, "late", b.Late, "from", b.From, "to", b.To,
				"read", b.Read, "guard", b.Guard, "handle", b.Handle, "commit", b.Commit, "overtaken", b.Overtaken, "error", b.Err)
		},
		HandlerOverdue: func(b Batch) {
			log(slog.LevelError, "handler ignores the end of its context", "consumer", b.Consumer, "attempt", b.Attempt, "first", b.First, "last", b.Last)
		},
		Retrying: func(r Retry) {
			log(slog.LevelWarn, "will retry", "consumer", r.Consumer, "in_a_row", r.InARow, "pause", r.Pause, "by_handler", r.ByHandler, "error", r.Err)
		},
		DeadLettered: func(d DeadLetter) {
			log(slog.LevelError, "event put among the dead letters", "consumer", d.Consumer, "position", d.Position, "event_id", d.EventID, "event_type", errtext.Word(d.EventType),
				"aggregate_type", errtext.Word(d.AggregateType), "aggregate_id", errtext.Word(d.AggregateID), "attempts", d.Attempts, "error", d.Error)
		},
		FrontierBlocked: func(t BlockingTransaction) {
			log(slog.LevelWarn, "a transaction stays open", "pid", t.PID, "gid", t.GID, "application_name", t.ApplicationName, "age", t.Age)
		},
		FrontierFailed: func(err error) { log(slog.LevelError, "the log cannot be looked at, will retry", "error", err) },
		NotifyFailed:   func(err error) { log(slog.LevelError, "notifications do not arrive", "error", err) },
		Recovered: func(r Recovery) {
			log(slog.LevelInfo, "trouble is over", "trouble", r.Trouble, "consumer", r.Consumer, "lasted", r.Lasted, "was", r.Err)
		},
		Skipped: func(s Skip) {
			log(slog.LevelInfo, "positions skipped", "consumer", s.Consumer, "first", s.First, "last", s.Last, "missing", s.Missing, "state", s.State)
		},
		Woken: func(w Wakeup) { log(slog.LevelDebug, "woken", "source", w.Source) },
	}
}
