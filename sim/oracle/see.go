package oracle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

// see names the records that tell of a position: what became of it, and what
// a consumer did about it.
func see(e *history.Evidence, consumer string, position int64) string {
	if e.History == nil {
		return ""
	}
	const enough = 8
	var found []string
	for _, r := range e.History.Records() {
		if (r.Consumer == "" || within(consumer, r.Consumer)) && concerns(r.About, position) && len(found) < enough {
			found = append(found, fmt.Sprint(r.N))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return " (history: " + strings.Join(found, ", ") + ")"
}

// concerns reports whether a record is about a position.
func concerns(about any, position int64) bool {
	holds := func(s history.Span) bool { return s.Holds(position) }
	switch x := about.(type) {
	case history.Transaction:
		return slices.ContainsFunc(x.Positions, holds) || slices.ContainsFunc(x.Abandoned, holds)
	case history.Batch:
		return x.First <= position && position <= x.Last || x.From < position && position <= x.To
	case history.Gap:
		return x.Holds(position)
	}
	return false
}
