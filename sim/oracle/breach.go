package oracle

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/pgfrontier/worker/sim/history"
)

// batch names a consumer's batch by its transaction.
type batch struct{ consumer, number string }

// brokenBatches are those whose handler ended the transaction. What these have
// applied may be applied again.
func brokenBatches(e *history.Evidence) map[batch]bool {
	broken := map[batch]bool{}
	for _, b := range e.Breaches {
		broken[batch{b.Consumer, b.Batch}] = true
	}
	return broken
}

// leftToOperators reports whether a worker said, as it ended because a handler
// had broken the rules, that an operator must check whether a position was handled.
func leftToOperators(e *history.Evidence, consumer string, position int64) bool {
	return slices.ContainsFunc(e.Breaches, func(b history.Breach) bool {
		return b.Consumer == consumer && b.Unknown != nil && b.Unknown.Holds(position)
	})
}

// ended checks that each worker whose handler ended its transaction has ended,
// too, with the error that says so.
func (f *Finding) ended(e *history.Evidence) {
	for _, b := range e.Breaches {
		if !b.Ended || mayBeUndone(e, b) {
			continue
		}
		f.check(slices.ContainsFunc(e.Exits, func(x history.Exit) bool { return x.Worker == b.Worker && x.Asked == history.ExitBroke }), func() string {
			return fmt.Sprintf("a handler of %s ended transaction %s of %s, and the worker did not end with an error that says so", b.Worker, b.Batch, b.Consumer)
		})
	}
}

// repaired checks that the repair of each batch that a handler committed is in
// the table of operations, or that its worker has left it to an operator.
func (f *Finding) repaired(e *history.Evidence) {
	for _, b := range e.Breaches {
		if !b.Committed || mayBeUndone(e, b) {
			continue
		}
		known := slices.ContainsFunc(e.Repairs, func(r history.Repair) bool { return r.Consumer == b.Consumer && r.Transaction == short(b.Batch) })
		left := slices.ContainsFunc(e.Breaches, func(x history.Breach) bool {
			return x.Unknown != nil && x.Worker == b.Worker && x.Consumer == b.Consumer
		})
		f.check(known || left, func() string {
			return fmt.Sprintf("a handler of %s committed transaction %s of %s, and no operation says that this was repaired", b.Worker, b.Batch, b.Consumer)
		})
	}
}

// mayBeUndone reports whether what a handler did may be gone: the server was
// set back since, or a crash may have taken back its commit.
func mayBeUndone(e *history.Evidence, b history.Breach) bool {
	return e.Forgetful || slices.ContainsFunc(e.Restores, func(r history.Restore) bool { return b.Life <= r.Restored })
}

// short is a transaction's number as rows have it, in 32 bits.
func short(transaction string) string {
	n, _ := strconv.ParseUint(transaction, 10, 64) // digits
	return strconv.FormatUint(n&(1<<32-1), 10)
}

// repairedBetween reports whether a checkpoint that fell may have been set back
// because a handler broke the rules.
func repairedBetween(e *history.Evidence, before, now history.Standing) bool {
	return now.Revision > before.Revision && slices.ContainsFunc(e.Repairs, func(r history.Repair) bool {
		return r.Consumer == now.Consumer && r.To <= now.Checkpoint && before.Checkpoint <= r.From
	})
}

// auditedAgain counts the positions of a row that another row may count as well. A sum over a range
// in which a handler broke the rules stays when the consumer is set back into that range. So does a
// sum over positions that the consumer watches again.
func auditedAgain(e *history.Evidence, consumer string, row history.Skip) (n int64) {
	for _, r := range e.Repairs {
		if first, last := max(r.To+1, row.First), min(r.From, row.Last); r.Consumer == consumer && first <= last {
			n += last - first + 1
		}
	}
	for p := row.First; p <= row.Last && len(e.Rewatched) > 0; p++ {
		n += one(rewatched(e, consumer, p))
	}
	return n
}

// rewatched reports whether a position was void for the consumer, which was merged
// with others that still watched it.
func rewatched(e *history.Evidence, consumer string, position int64) bool {
	return slices.ContainsFunc(e.Rewatched, func(s history.Skip) bool { return s.Consumer == consumer && s.Holds(position) })
}
