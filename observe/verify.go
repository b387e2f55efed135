package observe

import (
	"log/slog"

	"github.com/pgfrontier/worker/internal/errtext"
)

// Verified reports that ops.Operator.VerifyEvery has recomputed the rows of an aggregate, and compared
// them. The rows are right if Missing and Unexpected are 0 and Err is nil.
type Verified struct {
	Consumer      string
	AggregateType string
	AggregateID   string
	Events        int   // number of events that were handled
	Missing       int   // number of rows that the events make and the table lacks
	Unexpected    int   // number of rows of the table that the events do not make
	Position      int64 // of the first event that Handle failed at; 0: Handle has not failed
	Err           error // of Handle
}

func (e Verified) level() slog.Level {
	if e.Missing+e.Unexpected > 0 || e.Err != nil {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (e Verified) line() (string, []slog.Attr) {
	message := "aggregate verified"
	switch {
	case e.Err != nil:
		message = "aggregate cannot be verified, the handler fails"
	case e.level() == slog.LevelWarn:
		message = "rows of an aggregate differ from what its events make"
	}
	return message, []slog.Attr{consumerOf(e.Consumer), slog.String("aggregate_type", errtext.Unquoted(e.AggregateType)), slog.String("aggregate_id", errtext.Unquoted(e.AggregateID)),
		slog.Int("events", e.Events), slog.Int("missing", e.Missing), slog.Int("unexpected", e.Unexpected), slog.Int64("position", e.Position), failure(e.Err)}
}
