package observe

import (
	"log/slog"
	"strconv"
	"time"
)

// Batch describes a batch and how long its parts took.
type Batch struct {
	Consumer    string
	Attempt     int   // from 1
	Events      int   // passed to the handler; after an early commit, handled
	Late        int   // of these, behind the checkpoint
	From, To    int64 // the checkpoint before and after
	First, Last int64 // positions of the first and the last event; 0: no events

	Read   time.Duration // time of reading the events; also if they were read ahead
	Guard  time.Duration // time of BEGIN, and of locking and moving the checkpoint's row
	Handle time.Duration
	Commit time.Duration

	Overtaken bool  // another worker had moved the checkpoint; the batch has done nothing
	Err       error // nil: the batch was committed, unless Overtaken
}

// BatchStarted reports that a batch is about to begin its transaction. Of the durations
// only Read is set.
type BatchStarted struct{ Batch }

func (BatchStarted) level() slog.Level { return slog.LevelDebug }
func (e BatchStarted) line() (string, []slog.Attr) {
	return "batch started", []slog.Attr{consumerOf(e.Consumer), slog.Int("attempt", e.Attempt), slog.Int("events", e.Events), slog.Int64("from", e.From), slog.Int64("to", e.To)}
}

// BatchDone reports that a batch was committed, has failed (Err), or was Overtaken.
type BatchDone struct{ Batch }

func (BatchDone) level() slog.Level { return slog.LevelDebug }
func (e BatchDone) line() (string, []slog.Attr) {
	return "batch done", []slog.Attr{consumerOf(e.Consumer), slog.Int("attempt", e.Attempt), slog.Int("events", e.Events), slog.Int("late", e.Late),
		slog.Int64("from", e.From), slog.Int64("to", e.To), slog.Duration("read", e.Read), slog.Duration("guard", e.Guard),
		slog.Duration("handle", e.Handle), slog.Duration("commit", e.Commit), slog.Bool("overtaken", e.Overtaken), failure(e.Err)}
}

// HandlerOverdue reports a handler that still runs a second after the context of its batch
// ended. The context ended because BatchTimeout has passed or the worker stops. Err names
// the cause.
type HandlerOverdue struct{ Batch }

func (HandlerOverdue) level() slog.Level { return slog.LevelError }
func (e HandlerOverdue) line() (string, []slog.Attr) {
	return "handler overdue, it ignores the end of its context", []slog.Attr{consumerOf(e.Consumer), slog.Int("attempt", e.Attempt),
		slog.Int64("first", e.First), slog.Int64("last", e.Last), failure(e.Err)}
}

// BlockingTransaction is an open transaction that holds consumers back, or that may own
// positions that consumers have passed.
type BlockingTransaction struct {
	VirtualTransaction string
	PID                int    // of its server process; 0: a prepared transaction
	GID                string // of a prepared transaction, if known
	ApplicationName    string
	// State is the session's state, as in pg_stat_activity. It is empty if the worker's
	// role may not read it (GRANT pg_read_all_stats), or if the transaction is prepared.
	State string
	Age   time.Duration // of the transaction at the latest scan; 0: unknown
	Stale bool          // held back events for longer than StaleGapThreshold
	// Passed is true if the transaction is stale and consumers pass its positions
	// (GapSkipStale). Its events come late. Otherwise all events behind its positions wait.
	Passed bool
}

// Remedy returns how to end the transaction.
func (t BlockingTransaction) Remedy() string {
	switch {
	case t.PID != 0:
		return "let its application end it, or SELECT pg_terminate_backend(" + strconv.Itoa(t.PID) + ")"
	case t.GID != "":
		return "COMMIT PREPARED or ROLLBACK PREPARED '" + t.GID + "'"
	default:
		return "COMMIT PREPARED or ROLLBACK PREPARED, see pg_prepared_xacts"
	}
}

// FrontierBlocked reports a transaction that has held back the events behind its positions
// for longer than StaleGapThreshold. It is reported once for each transaction.
type FrontierBlocked struct{ BlockingTransaction }

func (FrontierBlocked) level() slog.Level { return slog.LevelWarn }
func (e FrontierBlocked) line() (string, []slog.Attr) {
	return "transaction stays open", []slog.Attr{slog.Bool("passed", e.Passed), slog.String("virtualtransaction", e.VirtualTransaction), slog.Int("pid", e.PID), slog.String("gid", e.GID),
		slog.String("application_name", e.ApplicationName), slog.String("state", e.State), slog.Duration("age", e.Age), slog.String("remedy", e.Remedy())}
}

// FrontierFailed reports that the worker cannot read the event log, so no new events are
// handled. The worker retries, and reports each failed attempt. The cause is the
// database's, or a *worker.SetupError: a change in the database breaks the frontier's
// proof.
type FrontierFailed struct{ Err error }

func (FrontierFailed) level() slog.Level { return slog.LevelError }
func (e FrontierFailed) line() (string, []slog.Attr) {
	return "cannot read the event log, retrying", []slog.Attr{failure(e.Err)}
}
