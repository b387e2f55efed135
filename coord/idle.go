package coord

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/partition"
)

// cause is the reason why no worker runs a unit.
type cause int

const (
	noCode   cause = iota // no live worker has code for the unit
	notKept               // the stored assignment differs from the leader's write
	otherKey              // the unit is a part, and the live workers have another key or no partition support
)

func (c cause) explain(cfg Config) string {
	switch c {
	case otherKey:
		return "the consumer is split by a key that no live worker's code has (Consumers of package ops names it): start one whose Partitions has that key, with Count 1 before another key is used"
	case noCode:
		return "no live worker has code for it: start one that has, or remove the consumer with Retire of package ops"
	}
	return fmt.Sprintf("its row in %s does not stay as the leader writes it: find a transaction that holds the row, a trigger or a rule on the table, and processes of another library that still run", cfg.Assignments)
}

// idle returns the units that no worker runs, as a poll shows them before changes are written.
// No live worker has code for such a unit, or its owner is not one of them.
func idle(alive []member, owners map[string]uuid.UUID, n next) map[string]cause {
	units := map[string]cause{}
	for _, u := range n.unowned {
		if slices.ContainsFunc(alive, func(m member) bool { return m.draining && m.ID == owners[u] }) {
			continue // a batch of the unit may be in flight
		}
		units[u] = noCode
		if slices.ContainsFunc(alive, func(m member) bool { return slices.Contains(m.Units, partition.Consumer(u)) }) {
			units[u] = otherKey
		}
	}
	for _, c := range n.changes {
		runs := func(m member) bool {
			return m.ID == owners[c.Unit] && slices.Contains(m.Units, partition.Consumer(c.Unit))
		}
		if !slices.ContainsFunc(alive, runs) {
			units[c.Unit] = notKept
		}
	}
	return units
}

// idleSince maps each idle unit to the time since when every poll has shown it idle.
type idleSince map[string]time.Time

// next returns the map after another poll. lasting are the units that have been idle for at
// least enough, in order of name.
func (v idleSince) next(idle map[string]cause, now time.Time, enough time.Duration) (next idleSince, lasting []string) {
	next = idleSince{}
	for u := range idle {
		since, was := v[u]
		if !was {
			since = now
		}
		if next[u] = since; now.Sub(since) >= enough {
			lasting = append(lasting, u)
		}
	}
	slices.Sort(lasting)
	return next, lasting
}

// watchIdle updates Status.Unowned. It reports each idle unit once, and once more when the
// unit runs again. A unit that moves between workers is idle only for a moment, which is not
// reported.
func (c *Coordinator) watchIdle(s *session, idle map[string]cause) {
	var lasting []string
	s.idle, lasting = s.idle.next(idle, time.Now(), c.cfg.HeartbeatInterval)
	c.record(func(s *Status) { s.Unowned = lasting })
	for _, u := range lasting {
		if slices.Contains(c.reported, u) {
			continue
		}
		c.reported = append(c.reported, u)
		reason := idle[u].explain(c.cfg)
		if c.cfg.OnUnowned != nil {
			c.cfg.OnUnowned(u, reason)
		}
	}
	c.reported = slices.DeleteFunc(c.reported, func(u string) bool {
		_, still := idle[u]
		if !still && c.cfg.OnOwned != nil {
			c.cfg.OnOwned(u)
		}
		return !still
	})
}
