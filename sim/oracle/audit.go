package oracle

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// audit compares the rows of skipped positions with what is missing in the
// log. A row says how many positions of its span are missing, not which: the
// ledgers are right if the missing positions can be shared out among the rows of
// the same epoch, each taking as many as it says.
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
		f.auditVoid(e, c.Name, log, void, open)
		for _, row := range void {
			_, first := log[row.First]
			_, last := log[row.Last]
			f.check(!first && !last, func() string {
				return fmt.Sprintf("%s: the audit says %v, but a position at an end of that range is in the log", c.Name, row)
			})
		}
		for epoch := range courseOf(e, c.Name).last() + 1 {
			f.auditLate(c, e, epoch, ofEpoch(late, epoch))
		}
	}
	f.repaired(e)
	return f
}

func ofEpoch(rows []history.Skip, epoch int64) (some []history.Skip) {
	for _, s := range rows {
		if s.Epoch == epoch {
			some = append(some, s)
		}
	}
	return some
}

func checkpoint(e *history.Evidence, consumer string) int64 {
	for _, s := range e.Rest.Standings {
		if s.Consumer == consumer {
			return s.Checkpoint
		}
	}
	return 0
}

// missingIn lists the positions above one and up to another that are not in
// the log.
func missingIn(above, upTo int64, log map[int64]history.Event) []int64 {
	var missing []int64
	for p := above + 1; p <= upTo; p++ {
		if _, there := log[p]; !there {
			missing = append(missing, p)
		}
	}
	return missing
}

// passage is a life of a position.
type passage struct {
	position int64
	life     int
}

// auditVoid accounts for the missing positions that the consumer passed, epoch by epoch. A full
// row, such as that of a former open range, names its positions itself, in whichever epoch they
// were passed. The rest is shared out among the other rows of the epoch.
func (f *Finding) auditVoid(e *history.Evidence, consumer string, log map[int64]history.Event, void, open []history.Skip) {
	c, at := courseOf(e, consumer), checkpoint(e, consumer)
	taken := map[passage]bool{}
	var partial []history.Skip
	for _, row := range void {
		if row.Missing != row.Last-row.First+1 {
			partial = append(partial, row)
			continue
		}
		var wrong int64
		for p := row.First; p <= row.Last; p++ {
			_, there := log[p]
			it := passage{p, c.life(p, row.Epoch)}
			wrong += one(there || p > c.reach(row.Epoch, at) || taken[it] && !rewatched(e, consumer, p))
			taken[it] = true
		}
		f.cannotBe(consumer, row, wrong)
	}
	for epoch := range c.last() + 1 {
		missing := missingIn(c.start(epoch), c.reach(epoch, at), log)
		life := func(p int64) passage { return passage{p, c.life(p, epoch)} }
		// A position that the consumer watches, or had to forget that it did, is in no row of void
		// positions. It must not take the place of another.
		rest := slices.DeleteFunc(slices.Clone(missing), func(p int64) bool { return taken[life(p)] || c.explained(life(p), open) })
		rows := ofEpoch(partial, epoch)
		unplaced, spare := shareOut(rest, rows)
		left := map[int64]bool{}
		for _, p := range unplaced {
			left[p] = true
		}
		for _, p := range missing {
			f.check(!left[p], func() string {
				return fmt.Sprintf("%s went past position %d, which is not in the log, and no row of the audit accounts for it%s", consumer, p, see(e, consumer, p))
			})
		}
		for i, row := range rows {
			if spare[i] > 0 {
				spare[i] = max(0, spare[i]-auditedAgain(e, consumer, row))
			}
			f.cannotBe(consumer, row, spare[i])
		}
	}
}

// explained reports whether the consumer still watches a position, or had to forget that it did.
func (c course) explained(it passage, open []history.Skip) bool {
	holds := func(s history.Skip) bool { return s.Holds(it.position) && c.life(it.position, s.Epoch) == it.life }
	return slices.ContainsFunc(open, holds) || slices.ContainsFunc(c.forgotten, holds)
}

func (f *Finding) cannotBe(consumer string, row history.Skip, positions int64) {
	f.check(row.Missing > 0 && positions == 0, func() string {
		return fmt.Sprintf("%s: the audit says %v, of which %d cannot be: they are in the log, above the checkpoint, or in another row",
			consumer, row, positions)
	})
}

// auditLate checks an epoch's rows of late events: what was delivered late is
// in one, and what a row counts has appeared.
func (f *Finding) auditLate(c history.Scope, e *history.Evidence, epoch int64, rows []history.Skip) {
	for _, x := range e.Ledger {
		if x.Consumer != c.Name || !x.Late || x.Epoch != epoch {
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
