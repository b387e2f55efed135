package coord

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
)

// Wish is what a worker's code says of the partitions of a consumer.
type Wish struct {
	Count int    `json:"count"`
	Key   string `json:"key,omitempty"` // the name of the key; empty: the aggregate's id
}

// Single is the wish for a consumer that is not to be split.
var Single = Wish{Count: 1}

// details are what a worker's row shows of a consumer. Programs from before there were
// scopes show no consumer without a wish, and read none.
type details struct {
	Wish
	Scope *scope.Scope `json:"scope,omitempty"`
}

// detailsText is how a worker's row shows its wishes and scopes: an empty object for none.
func detailsText(wishes map[string]Wish, scopes map[string]scope.Scope) string {
	told := map[string]details{}
	for consumer, w := range wishes {
		if w != Single {
			told[consumer] = details{Wish: w}
		}
	}
	for consumer, s := range scopes {
		d := details{Wish: Single, Scope: &s}
		if w, wished := told[consumer]; wished {
			d.Wish = w.Wish
		}
		told[consumer] = d
	}
	text, _ := json.Marshal(told) // numbers and strings
	return string(text)
}

// detailsOf reads what a worker's row shows. wishes is nil for a program from before there
// were partitions, and for what is no wish; scopes has none of a program from before there
// were any.
func detailsOf(n liveness.Node) (wishes map[string]Wish, scopes map[string]scope.Scope) {
	var told map[string]details
	if err := json.Unmarshal(n.Details, &told); err != nil || told == nil {
		return nil, nil
	}
	wishes, scopes = map[string]Wish{}, map[string]scope.Scope{}
	for consumer, d := range told {
		if d.Wish != Single {
			wishes[consumer] = d.Wish
		}
		if d.Scope != nil {
			scopes[consumer] = *d.Scope
		}
	}
	return wishes, scopes
}

// wish returns what a member wishes for a consumer that it has code for.
func (m Member) wish(consumer string) Wish {
	if w, ok := m.Wishes[consumer]; ok && w.Count > 0 {
		return w
	}
	return Single
}

// isOld reports whether a member's program is from before there were partitions.
func (m Member) isOld() bool { return m.Wishes == nil }

// part is a checkpoint's row that has to do with partitions, as a look shows it.
type part struct {
	Unit  string `json:"unit"`
	Key   string `json:"key"`   // that the unit's slots are of
	Split bool   `json:"split"` // the consumer's own row, which is no unit now
	Fixed int    `json:"fixed"` // by an operator, in the consumer's own row; 0: not
}

// unit is one of a layout.
type unit struct {
	name  string
	slots partition.Range
}

// layout is a consumer that is in partitions, or may be.
type layout struct {
	consumer string
	units    []unit // in order of their slots; together they have each slot once
	split    bool
	key      string // that it is split by
	fixed    int
	count    int    // partitions, as they are wanted; 0: the units stay
	able     []bool // which of the members may run its units
}

// layoutsOf returns the consumers that are split, or have a number of partitions
// that is fixed or wished for, or for which members have different scopes, each with its
// target. Every other consumer is one unit that any member with its code may run.
func layoutsOf(alive []Member, parts []part) map[string]*layout {
	all := map[string]*layout{}
	of := func(consumer string) *layout {
		if all[consumer] == nil {
			all[consumer] = &layout{consumer: consumer}
		}
		return all[consumer]
	}
	for _, m := range alive {
		for consumer := range m.Wishes {
			if slices.Contains(m.Units, consumer) {
				of(consumer)
			}
		}
	}
	for _, consumer := range disputed(alive) {
		of(consumer)
	}
	for _, p := range parts {
		consumer, slots, ok := partition.Parse(p.Unit)
		if !ok {
			continue // nobody of ours has written it
		}
		l := of(consumer)
		if slots == partition.All {
			l.split, l.fixed = p.Split, p.Fixed
		} else {
			l.units, l.key = append(l.units, unit{p.Unit, slots}), p.Key
		}
	}
	for _, l := range all {
		if !l.split {
			l.units, l.key = []unit{{l.consumer, partition.All}}, ""
		}
		slices.SortFunc(l.units, func(a, b unit) int { return cmp.Compare(a.slots.First, b.slots.First) })
		l.decide(alive)
	}
	return all
}

// Number says how many partitions are wanted of a consumer: what an operator has
// fixed, above 0, or what all wish who have its code. Programs from before there were
// partitions, or of other libraries, are old: they wish for one. 0: the units stay, as there is no agreement, as in the
// middle of a deployment, or nobody knows by which key to split.
func Number(fixed int, split, old bool, wishes []Wish) (count int) {
	switch {
	case fixed > 0:
		count = fixed
	case old:
		count = 1
	case len(wishes) > 0 && !slices.ContainsFunc(wishes, func(w Wish) bool { return w.Count != wishes[0].Count }):
		count = wishes[0].Count
	}
	if count > 1 && !split && (len(wishes) == 0 || slices.ContainsFunc(wishes, func(w Wish) bool { return w.Key != wishes[0].Key })) {
		return 0
	}
	return count
}

// decide says how many partitions are wanted, and who may run them. A part takes a
// program that knows its key.
func (l *layout) decide(alive []Member) {
	l.able = make([]bool, len(alive))
	var wishes []Wish // of those that know what a part is
	old, fixed := false, l.fixed
	for i, m := range alive {
		if m.Units == nil { // it may take any consumer, and knows nothing that would keep it from a split one
			old, fixed = true, 0
		}
		if !slices.Contains(m.Units, l.consumer) {
			continue
		}
		l.able[i] = true
		if m.isOld() {
			old = true
		} else if w := m.wish(l.consumer); !slices.Contains(wishes, w) {
			wishes = append(wishes, w)
		}
	}
	l.count = Number(fixed, l.split, old, wishes)
	key := l.key
	if !l.split {
		if l.count <= 1 {
			outrank(alive, l.consumer, l.able)
			return
		}
		key = wishes[0].Key
	}
	for i, m := range alive {
		l.able[i] = l.able[i] && !m.isOld() && m.wish(l.consumer).Key == key
	}
	outrank(alive, l.consumer, l.able)
}

// outrank clears able for the members whose scope is not the greatest of those able, see
// [scope.Scope.Compare]: their code would pass events that the greatest scope selects. A
// member without a scope stays able.
func outrank(alive []Member, consumer string, able []bool) {
	var best *scope.Scope
	for i, m := range alive {
		if s, says := m.Scopes[consumer]; says && able[i] && (best == nil || s.Compare(*best) > 0) {
			best = &s
		}
	}
	for i, m := range alive {
		if s, says := m.Scopes[consumer]; says && able[i] {
			able[i] = s.Compare(*best) == 0
		}
	}
}

// disputed returns the consumers for which members have different scopes.
func disputed(alive []Member) (consumers []string) {
	first := map[string]scope.Scope{}
	for _, m := range alive {
		for consumer, s := range m.Scopes {
			if other, known := first[consumer]; !known {
				first[consumer] = s
			} else if other.Compare(s) != 0 && !slices.Contains(consumers, consumer) {
				consumers = append(consumers, consumer)
			}
		}
	}
	return consumers
}

// target returns the partition that a unit is to become, to come apart into, or
// to be merged into: that of its first slot.
func (l *layout) target(u unit) string {
	if l.count == 0 {
		return u.name
	}
	return partition.Name(l.consumer, partition.Target(l.count, u.slots.First))
}

// wanted is what the units are told: nothing where there is nothing to do about
// a consumer that is not split.
func (l *layout) wanted() int {
	if l.count == 1 && !l.split {
		return 0
	}
	return l.count
}

// targets returns what is to be dealt of the consumer.
func (l *layout) targets() (names []string) {
	if l.count > 0 {
		for _, r := range partition.Cut(l.count) {
			names = append(names, partition.Name(l.consumer, r))
		}
		return names
	}
	for _, u := range l.units {
		names = append(names, u.name)
	}
	return names
}

// dealing are the members with the partitions that they may run, instead of the
// consumers in layouts.
func dealing(alive []Member, layouts map[string]*layout) []Member {
	if len(layouts) == 0 {
		return alive
	}
	members := make([]Member, len(alive))
	for i, m := range alive {
		members[i].ID = m.ID
		for _, u := range m.Units {
			if _, apart := layouts[u]; !apart {
				members[i].Units = append(members[i].Units, u)
			}
		}
		for _, l := range layouts {
			if l.able[i] {
				members[i].Units = append(members[i].Units, l.targets()...)
			}
		}
		slices.Sort(members[i].Units) // members of the same build have the same list
	}
	return members
}

// keepers are the owners of what is dealt. A partition that is not there yet
// belongs to who has its first slot.
func keepers(owners map[string]uuid.UUID, layouts map[string]*layout) map[string]uuid.UUID {
	kept := maps.Clone(owners)
	for _, l := range layouts {
		for _, u := range l.units {
			if target := l.target(u); target != u.name && kept[target] == uuid.Nil {
				kept[target] = owners[u.name]
			}
		}
	}
	return kept
}
