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

// details are the details of a consumer in a worker's row. Builds without scope support write
// no consumer without a demand, and cannot read one.
type details struct {
	partition.Demand
	Scope *scope.Scope `json:"scope,omitempty"`
}

// detailsText returns the details in a worker's row: an empty object if there are none.
func detailsText(demands map[string]partition.Demand, scopes map[string]scope.Scope) string {
	shown := map[string]details{}
	for consumer, w := range demands {
		if w != partition.Single {
			shown[consumer] = details{Demand: w}
		}
	}
	for consumer, s := range scopes {
		d := details{Demand: partition.Single, Scope: &s}
		if w, demanded := shown[consumer]; demanded {
			d.Demand = w.Demand
		}
		shown[consumer] = d
	}
	text, _ := json.Marshal(shown) // numbers and strings
	return string(text)
}

// detailsOf parses the details in a worker's row. demands is nil for a build without partition
// support and for details that cannot be parsed. scopes is empty for a build without scope
// support.
func detailsOf(n liveness.Node) (demands map[string]partition.Demand, scopes map[string]scope.Scope) {
	var shown map[string]details
	if err := json.Unmarshal(n.Details, &shown); err != nil || shown == nil {
		return nil, nil
	}
	demands, scopes = map[string]partition.Demand{}, map[string]scope.Scope{}
	for consumer, d := range shown {
		if d.Demand != partition.Single {
			demands[consumer] = d.Demand
		}
		if d.Scope != nil {
			scopes[consumer] = *d.Scope
		}
	}
	return demands, scopes
}

// demand returns a member's demand for a consumer that the member has code for.
func (m member) demand(consumer string) partition.Demand {
	if w, ok := m.Demands[consumer]; ok && w.Count > 0 {
		return w
	}
	return partition.Single
}

// predatesPartitions reports whether the member's build has no partition support.
func (m member) predatesPartitions() bool { return m.Demands == nil }

// part is a checkpoint's row that concerns partitions, as a poll shows it.
type part struct {
	Unit  string `json:"unit"`
	Key   string `json:"key"`   // the key of the unit's slots
	Split bool   `json:"split"` // the consumer's own row while the consumer is split
	Fixed int    `json:"fixed"` // by an operator, in the consumer's own row; 0: not fixed
}

// unit is a unit of a layout.
type unit struct {
	name  string
	slots partition.Range
}

// layout is a consumer that is split, or may be split.
type layout struct {
	consumer string
	units    []unit // in order of their slots; together they cover each slot once
	split    bool
	key      string // the key of the split
	fixed    int
	count    int    // wanted partitions; 0: the units stay
	able     []bool // by member: may the member run the units
}

// layoutsOf returns the consumers that need a layout, each with its target. A consumer needs a
// layout in four cases: it is split, its number of partitions is fixed, a member demands
// partitions, or members have different scopes. Every other consumer is one unit that any
// member with its code may run.
func layoutsOf(alive []member, parts []part) map[string]*layout {
	all := map[string]*layout{}
	of := func(consumer string) *layout {
		if all[consumer] == nil {
			all[consumer] = &layout{consumer: consumer}
		}
		return all[consumer]
	}
	for _, m := range alive {
		for consumer := range m.Demands {
			if slices.Contains(m.Units, consumer) {
				of(consumer)
			}
		}
	}
	for _, consumer := range withDifferentScopes(alive) {
		of(consumer)
	}
	for _, p := range parts {
		consumer, slots, ok := partition.Parse(p.Unit)
		if !ok {
			continue // not written by this library
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

// decide sets the number of wanted partitions and the members that may run them. Only a member
// whose build knows the key may run a part.
func (l *layout) decide(alive []member) {
	l.able = make([]bool, len(alive))
	var demands []partition.Demand // of members with partition support
	old, fixed := false, l.fixed
	for i, m := range alive {
		if m.Units == nil { // a worker of another library may run any consumer, and ignores partitions
			old, fixed = true, 0
		}
		if !slices.Contains(m.Units, l.consumer) {
			continue
		}
		l.able[i] = true
		if m.predatesPartitions() {
			old = true
		} else if w := m.demand(l.consumer); !slices.Contains(demands, w) {
			demands = append(demands, w)
		}
	}
	l.count = partition.Number(fixed, l.split, old, demands)
	key := l.key
	if !l.split {
		if l.count <= 1 {
			outrank(alive, l.consumer, l.able)
			return
		}
		key = demands[0].Key
	}
	for i, m := range alive {
		l.able[i] = l.able[i] && !m.predatesPartitions() && m.demand(l.consumer).Key == key
	}
	outrank(alive, l.consumer, l.able)
}

// outrank clears able for each member whose scope is below the greatest scope of the able
// members, see [scope.Scope.Compare]. Such a member's code would pass events that the greatest
// scope selects. A member without a scope stays able.
func outrank(alive []member, consumer string, able []bool) {
	var best *scope.Scope
	for i, m := range alive {
		if s, has := m.Scopes[consumer]; has && able[i] && (best == nil || s.Compare(*best) > 0) {
			best = &s
		}
	}
	for i, m := range alive {
		if s, has := m.Scopes[consumer]; has && able[i] {
			able[i] = s.Compare(*best) == 0
		}
	}
}

// withDifferentScopes returns the consumers for which members have different scopes.
func withDifferentScopes(alive []member) (consumers []string) {
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

// target returns the partition that a unit is to become, to be split into or to be merged
// into. For a split, it is the partition of the unit's first slot.
func (l *layout) target(u unit) string {
	if l.count == 0 {
		return u.name
	}
	return partition.Name(l.consumer, partition.Target(l.count, u.slots.First))
}

// wanted returns the number of partitions in the assignments of the units. It is 0 for a
// consumer that is not split and needs no split.
func (l *layout) wanted() int {
	if l.count == 1 && !l.split {
		return 0
	}
	return l.count
}

// targets returns the partitions of the consumer that are dealt.
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

// dealing returns the members with the partitions that they may run, in place of the consumers
// in layouts.
func dealing(alive []member, layouts map[string]*layout) []member {
	if len(layouts) == 0 {
		return alive
	}
	members := make([]member, len(alive))
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
		slices.Sort(members[i].Units) // members of the same build get the same list
	}
	return members
}

// targetOwners returns the owners of the dealt partitions. The owner of a partition that does
// not exist yet is the owner of its first slot.
func targetOwners(owners map[string]uuid.UUID, layouts map[string]*layout) map[string]uuid.UUID {
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
