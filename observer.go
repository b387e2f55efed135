package worker

// Observer is told what happens. Every field may be nil. Calls come from the
// worker's own goroutines: return soon, and do not call Stop and wait.
type Observer struct {
	// FrontierBlocked: a transaction has held back the events behind its
	// positions for longer than StaleGapThreshold. Once for each.
	FrontierBlocked func(BlockingTransaction)
	// Skipped: a consumer's batch was committed that went past positions
	// without an event, or that ended doubts about such positions. The same is
	// in the audit table.
	Skipped func(Skip)
}

// Skip is one row of the audit of skipped positions.
type Skip struct {
	Consumer    string
	First, Last int64     // position
	Missing     int64     // how many positions between them, both included
	State       SkipState // what is known of them
}

// SkipState is what is known of a skipped position.
type SkipState string

const (
	SkipVoid SkipState = "void" // proven never to appear
	SkipOpen SkipState = "open" // in doubt when passed; it is being watched
	SkipLate SkipState = "late" // appeared after it was passed, and was delivered
)

// skipped reports a committed batch's marks.
func (o Observer) skipped(consumer string, marks []mark) {
	if o.Skipped == nil {
		return
	}
	for _, m := range marks {
		o.Skipped(Skip{Consumer: consumer, First: m.Gap, Last: m.End, Missing: m.Missing, State: m.State})
	}
}
