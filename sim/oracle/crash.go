package oracle

import (
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// afterCrashes decides which of the transactions that a crash may have taken
// back are committed: the log is the truth.
func afterCrashes(e *history.Evidence) *history.Evidence {
	if len(e.Unsure) == 0 {
		return e
	}
	decided, log := *e, byPosition(e.Log)
	decided.Committed = slices.Clone(e.Committed)
	for _, transaction := range e.Unsure {
		if surviving(transaction, log) > 0 {
			decided.Committed = append(decided.Committed, transaction...)
		}
	}
	return &decided
}

// surviving counts the events of a transaction that are in the log.
func surviving(transaction []history.Event, log map[int64]history.Event) (n int) {
	for _, event := range transaction {
		n += int(one(log[event.Position].EventID == event.EventID))
	}
	return n
}

func byPosition(events []history.Event) map[int64]history.Event {
	at := make(map[int64]history.Event, len(events))
	for _, event := range events {
		at[event.Position] = event
	}
	return at
}
