package oracle

import (
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// calls finds errors that no fault explains.
func calls(e *history.Evidence) Finding {
	f := Finding{Name: "calls", Rule: "no call of the library failed or hung, unless a fault explains it"}
	for _, what := range e.Failures {
		f.check(false, func() string { return what })
	}
	return f
}

// exactlyOnce finds lost and doubled events. An operator who sets a consumer
// back wants them once more.
func exactlyOnce(e *history.Evidence) Finding {
	f := Finding{Name: "exactly once", Rule: "every committed event was applied exactly once by each consumer that wants it"}
	if e.Kept+len(e.Unkept) > 0 {
		f.Rule += ", and had been when WaitFor said so"
	}
	if len(e.Operations) > 0 {
		f.Rule += ", once more each time that an operator had set it back, and not if one had left it out"
	}
	applied := map[string]map[int64][]history.Entry{}
	for _, c := range e.Consumers {
		applied[c.Name] = map[int64][]history.Entry{}
	}
	for _, x := range e.Ledger {
		if at := applied[x.Consumer]; at != nil {
			at[x.Position] = append(at[x.Position], x)
		}
	}
	if len(e.Breaches) > 0 {
		f.Rule += "; in a batch whose handler broke the rules, at least once"
	}
	broken := brokenBatches(e)
	for _, p := range e.Placements {
		f.placed(e, p)
	}
	for range e.Kept {
		f.check(true, nil)
	}
	for _, what := range e.Unkept {
		f.check(false, func() string { return what })
	}
	if e.Unread {
		return f // an operator may have wanted it again
	}
	for _, c := range e.Consumers {
		course := courseOf(e, c.Name)
		for _, event := range e.Committed {
			if wants(c, event) {
				f.once(e, c.Name, course, event, applied[c.Name][event.Position], broken)
			}
		}
	}
	return f
}

// placed checks that nothing was committed below a consumer's first checkpoint after the placement:
// the consumer would never get it.
func (f *Finding) placed(e *history.Evidence, p history.Placement) {
	var now int64
	for _, event := range e.Log {
		now += one(event.Position <= p.Position)
	}
	f.check(now == p.Visible, func() string {
		return fmt.Sprintf("%s was placed at %d when %d events up to there were visible; now there are %d, and it is never given the others", p.Consumer, p.Position, p.Visible, now)
	})
}

// once checks the entries of an event in each of its lives.
func (f *Finding) once(e *history.Evidence, consumer string, c course, event history.Event, entries []history.Entry, broken map[batch]bool) {
	wanted := c.wanted(event.Position)
	lives := make([][]history.Entry, len(wanted))
	for _, x := range entries {
		n := c.life(event.Position, x.Epoch)
		lives[n] = append(lives[n], x)
	}
	for n, times := range lives {
		honest := 0 // applied by a batch that kept the rules
		for _, x := range times {
			honest += int(one(!broken[batch{x.Consumer, x.Batch}]))
		}
		want := int(one(wanted[n]))
		if e.Incomplete || leftToOperators(e, consumer, event.Position) {
			want = min(want, len(times))
		}
		f.check(honest <= int(one(wanted[n])) && len(times) >= want, func() string {
			again := ""
			if n > 0 {
				again = fmt.Sprintf(" after it had been set back over it %d times", n)
			}
			switch {
			case len(times) == 0:
				return fmt.Sprintf("%s never applied %v%s%s", consumer, event, again, see(e, consumer, event.Position))
			case len(times) == 1:
				return fmt.Sprintf("%s applied %v%s, which an operator had let it leave out%s", consumer, event, again, see(e, consumer, event.Position))
			}
			return fmt.Sprintf("%s applied %v%s %d times: %s in transaction %s, then %s in transaction %s%s",
				consumer, event, again, len(times), times[0].Worker, times[0].Batch, times[1].Worker, times[1].Batch, see(e, consumer, event.Position))
		})
	}
}

// nothingElse finds what should not be there.
func nothingElse(e *history.Evidence) Finding {
	f := Finding{Name: "nothing else", Rule: "the log holds what the writers committed, the ledger only what is in the log and in scope"}
	committed, log := byPosition(e.Committed), byPosition(e.Log)
	compared := *e // what the writers' ledgers and the log say of each other
	if e.Incomplete {
		compared = history.Evidence{} // a writer that failed has not recorded its last transaction
	}
	for _, event := range compared.Committed {
		f.check(log[event.Position] == event, func() string { return fmt.Sprintf("%v was committed, but is not in the log like that", event) })
	}
	for _, transaction := range compared.Unsure {
		n := surviving(transaction, log)
		f.check(n == 0 || n == len(transaction), func() string {
			return fmt.Sprintf("of a transaction whose first event was %v, %d of %d events outlived a crash", transaction[0], n, len(transaction))
		})
	}
	versions := map[[2]string]int64{}
	for _, event := range e.Log {
		aggregate := [2]string{event.Type, event.ID}
		versions[aggregate]++
		_, known := committed[event.Position]
		f.check(known || e.Incomplete, func() string { return fmt.Sprintf("%v is in the log, but no writer committed it", event) })
		f.check(versions[aggregate] == event.Version, func() string {
			return fmt.Sprintf("%v is event %d of its aggregate in the log", event, versions[aggregate])
		})
	}
	for _, event := range compared.Abandoned {
		f.check(log[event.Position].EventID != event.EventID, func() string { return fmt.Sprintf("%v was rolled back, but is in the log", event) })
	}
	scopes := map[string]history.Scope{}
	for _, c := range e.Consumers {
		scopes[c.Name] = c
	}
	for _, x := range e.Ledger {
		c, known := scopes[x.Consumer]
		f.check(known && selects(c, x.Event), func() string { return fmt.Sprintf("%s applied %v, which is out of its scope", x.Consumer, x.Event) })
		f.check(e.Incomplete || committed[x.Position] == x.Event, func() string {
			return fmt.Sprintf("%s applied %v, which was not committed like that", x.Consumer, x.Event)
		})
	}
	for range e.Refused {
		f.check(true, nil)
	}
	for _, what := range e.Misled {
		f.check(false, func() string { return what })
	}
	return f
}

// order finds events applied too early or too late. Events delivered late may
// come out of the order of positions, not out of the order of their aggregate.
// After a reset the order starts over.
func order(e *history.Evidence) Finding {
	f := Finding{Name: "order", Rule: "each consumer applied the events of an aggregate in order of version, and all but late ones in order of position"}
	if e.Strict {
		f.Rule = "each consumer applied the events in order of position, and those of an aggregate in order of version"
	}
	type epoch struct {
		consumer string
		number   int64
	}
	type aggregate struct {
		epoch
		kind, id string
	}
	versions := map[aggregate]int64{}
	positions := map[epoch]int64{}
	broken := brokenBatches(e)
	for _, x := range e.Ledger {
		if broken[batch{x.Consumer, x.Batch}] {
			continue
		}
		in := epoch{x.Consumer, x.Epoch}
		a := aggregate{in, x.Type, x.ID}
		before := versions[a]
		f.check(x.Version > before, func() string {
			return fmt.Sprintf("%s applied %v after version %d of that aggregate%s", x.Consumer, x.Event, before, see(e, x.Consumer, x.Position))
		})
		versions[a] = x.Version
		if x.Late {
			f.check(!e.Strict || skippedOver(e, x), func() string {
				return fmt.Sprintf("%s was given %v as a late event, though gaps are waited for%s", x.Consumer, x.Event, see(e, x.Consumer, x.Position))
			})
			continue
		}
		last := positions[in]
		f.check(x.Position > last, func() string {
			return fmt.Sprintf("%s applied %v after position %d, not as a late event%s", x.Consumer, x.Event, last, see(e, x.Consumer, x.Position))
		})
		positions[in] = x.Position
	}
	return f
}

// skippedOver reports whether an operator made the consumer skip an event behind this one while
// this one was being written. Then this one comes late, whatever the policy.
func skippedOver(e *history.Evidence, x history.Entry) bool {
	return slices.ContainsFunc(e.Operations, func(o history.Operation) bool {
		return o.Kind == history.OperationSkip && o.Consumer == x.Consumer && o.Epoch == x.Epoch && o.From < x.Position && x.Position < o.To
	})
}

// ownership finds batches of one consumer that overlapped. A batch that writes holds its consumer's
// checkpoint row, so no entry of another batch of that consumer lies between its entries.
func ownership(e *history.Evidence) Finding {
	f := Finding{Name: "one at a time", Rule: "no two batches of a consumer overlapped"}
	current := map[string]history.Entry{}
	ended := map[[2]string]bool{}
	broken := brokenBatches(e)
	for _, x := range e.Ledger {
		if broken[batch{x.Consumer, x.Batch}] {
			continue // it has let go of its consumer
		}
		last, any := current[x.Consumer]
		current[x.Consumer] = x
		if any && last.Batch == x.Batch {
			f.check(last.Worker == x.Worker, func() string {
				return fmt.Sprintf("%s: transaction %s has entries of %s and %s", x.Consumer, x.Batch, last.Worker, x.Worker)
			})
			continue
		}
		ended[[2]string{x.Consumer, last.Batch}] = true
		f.check(!ended[[2]string{x.Consumer, x.Batch}], func() string {
			return fmt.Sprintf("%s: %s applied %v in transaction %s, between whose entries %s has some of transaction %s",
				x.Consumer, x.Worker, x.Event, x.Batch, last.Worker, last.Batch)
		})
	}
	return f
}

// undecided finds checkpoints beyond a position whose transaction was open. At
// each sighting it was open for certain, so there are no false alarms.
func undecided(e *history.Evidence) Finding {
	f := Finding{Name: "no guessing", Rule: "no checkpoint passed a position of an open transaction without a record that it is in doubt"}
	for _, s := range e.Sightings {
		for _, position := range s.Positions {
			for _, c := range s.Standings {
				f.check(!c.Passed(position), func() string {
					return fmt.Sprintf("%s stood at %d while position %d was still to be committed, and had no open range for it (open: %v)%s",
						c.Consumer, c.Checkpoint, position, c.Open, see(e, c.Consumer, position))
				})
			}
		}
	}
	return f
}

// forwards finds checkpoints that fell back, other than to where an operator
// had set them.
func forwards(e *history.Evidence) Finding {
	f := Finding{Name: "forwards", Rule: "checkpoints and revisions never fell back"}
	last := map[string]history.Standing{}
	courses := map[string]course{}
	for _, c := range e.Consumers {
		courses[c.Name] = courseOf(e, c.Name)
	}
	for _, sample := range e.Samples {
		for _, now := range sample {
			before, any := last[now.Consumer]
			last[now.Consumer] = now
			if !any {
				continue
			}
			if e.Forgetful && now.Life != before.Life || restoredBetween(e, before.Life, now.Life) {
				continue
			}
			if undone(e, now.Life) && (now.Epoch != before.Epoch || len(e.Breaches) > 0) {
				continue // it is not known any more who set it back
			}
			if c := courses[now.Consumer]; now.Epoch > before.Epoch && now.Epoch <= c.last() {
				before.Checkpoint = c.start(now.Epoch)
			}
			if repairedBetween(e, before, now) {
				before.Checkpoint = now.Checkpoint
			}
			f.check(now.Checkpoint >= before.Checkpoint && now.Revision >= before.Revision, func() string {
				return fmt.Sprintf("%s fell from position %d, revision %d back to %d, %d",
					now.Consumer, before.Checkpoint, before.Revision, now.Checkpoint, now.Revision)
			})
		}
	}
	return f
}

// restoredBetween reports whether the server was set back between two of its
// lives.
func restoredBetween(e *history.Evidence, before, now int64) bool {
	return slices.ContainsFunc(e.Restores, func(r history.Restore) bool { return before < r.Restored && r.Restored < now })
}

// undone reports whether what happened in a life of the server is gone.
func undone(e *history.Evidence, life int64) bool {
	return slices.ContainsFunc(e.Restores, func(r history.Restore) bool { return r.Copied < life && life < r.Restored })
}
