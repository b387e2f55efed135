package oracle

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// audit compares the rows of skipped positions with what is missing in the
// log. A row says how many positions of its span are missing, not which: the
// books are right if the missing positions can be shared out among the rows,
// each taking as many as it says.
func audit(e *history.Evidence) Finding {
	f := Finding{Name: "audit", Rule: "every missing position below a checkpoint is in the audit, once, and no visible one; late events are recorded as late"}
	log := byPosition(e.Log)
	for _, c := range e.Consumers {
		var void, open, late []history.Skip
		for _, s := range e.Skips {
			switch {
			case s.Consumer != c.Name:
			case s.State == "void":
				void = append(void, s)
			case s.State == "open":
				open = append(open, s)
			case s.State == "late":
				late = append(late, s)
			default:
				f.check(false, func() string { return fmt.Sprintf("%s: a row with the unknown state %q", c.Name, s.State) })
			}
		}
		missing := missingUpTo(checkpoint(e, c.Name), log)
		f.auditVoid(e, c.Name, missing, void, open)
		for _, row := range void {
			_, first := log[row.First]
			_, last := log[row.Last]
			f.check(!first && !last, func() string {
				return fmt.Sprintf("%s: the audit says %v, but a position at an end of that range is in the log", c.Name, row)
			})
		}
		f.auditLate(c, e, late)
	}
	return f
}

func checkpoint(e *history.Evidence, consumer string) int64 {
	for _, s := range e.Rest.Standings {
		if s.Consumer == consumer {
			return s.Checkpoint
		}
	}
	return 0
}

// missingUpTo lists the positions from 1 that are not in the log.
func missingUpTo(last int64, log map[int64]history.Event) []int64 {
	var missing []int64
	for p := int64(1); p <= last; p++ {
		if _, there := log[p]; !there {
			missing = append(missing, p)
		}
	}
	return missing
}

// auditVoid shares the missing positions out among the void rows. Ranges still
// open (the run did not come to rest) may explain what is left over.
func (f *Finding) auditVoid(e *history.Evidence, consumer string, missing []int64, void, open []history.Skip) {
	unplaced, spare := shareOut(missing, void)
	left := map[int64]bool{}
	for _, p := range unplaced {
		left[p] = !slices.ContainsFunc(open, func(s history.Skip) bool { return s.Holds(p) })
	}
	for _, p := range missing {
		f.check(!left[p], func() string {
			return fmt.Sprintf("%s went past position %d, which is not in the log, and no row of the audit accounts for it%s", consumer, p, see(e, consumer, p))
		})
	}
	for i, row := range void {
		f.check(row.Missing > 0 && spare[i] == 0, func() string {
			return fmt.Sprintf("%s: the audit says %v, of which %d cannot be: they are in the log, above the checkpoint, or in another row",
				consumer, row, spare[i])
		})
	}
}

// auditLate checks the rows of late events: what was delivered late is in one,
// and what a row counts has appeared.
func (f *Finding) auditLate(c history.Scope, e *history.Evidence, rows []history.Skip) {
	for _, x := range e.Ledger {
		if x.Consumer != c.Name || !x.Late {
			continue
		}
		f.check(slices.ContainsFunc(rows, func(s history.Skip) bool { return s.Holds(x.Position) }), func() string {
			return fmt.Sprintf("%s was given %v late, and the audit has no row of that%s", c.Name, x.Event, see(e, c.Name, x.Position))
		})
	}
	var visible []int64
	for _, event := range e.Log {
		if slices.ContainsFunc(rows, func(s history.Skip) bool { return s.Holds(event.Position) }) {
			visible = append(visible, event.Position)
		}
	}
	_, spare := shareOut(visible, rows)
	for i, row := range rows {
		f.check(row.Missing > 0 && spare[i] == 0, func() string {
			return fmt.Sprintf("%s: the audit says %v, of which %d never appeared", c.Name, row, spare[i])
		})
	}
}

// shareOut gives each position to a row whose span holds it and which has not
// got as many yet as it says. It returns the positions without a row, and how
// many each row lacks. Both are as small as they can be: taking the positions
// in order and the row that ends first is a maximum matching of a convex
// bipartite graph (Glover, Maximum matching in a convex bipartite graph, 1967).
func shareOut(positions []int64, rows []history.Skip) (unplaced []int64, spare []int64) {
	spare = make([]int64, len(rows))
	order := make([]int, len(rows))
	for i, row := range rows {
		spare[i], order[i] = row.Missing, i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(rows[a].First, rows[b].First) })
	var active []int // rows that begin at or below the position, the first to end first
	for _, p := range positions {
		for len(order) > 0 && rows[order[0]].First <= p {
			row := order[0]
			order = order[1:]
			at, _ := slices.BinarySearchFunc(active, rows[row].Last, func(r int, last int64) int { return cmp.Compare(rows[r].Last, last) })
			active = slices.Insert(active, at, row)
		}
		for len(active) > 0 && (rows[active[0]].Last < p || spare[active[0]] <= 0) {
			active = active[1:]
		}
		if len(active) == 0 {
			unplaced = append(unplaced, p)
			continue
		}
		spare[active[0]]--
	}
	return unplaced, spare
}
