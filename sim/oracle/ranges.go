package oracle

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

// slots is how many slots the keys of a consumer hash to.
const slots = 4096

// slotOf returns the slot of an event, whose key is its aggregate's id.
func slotOf(e history.Event) int64 {
	sum := sha256.Sum256([]byte(e.ID))
	return int64(sum[0])<<4 | int64(sum[1])>>4
}

// slotsOf parses the name of a unit. ok is false for a name that no unit has.
func slotsOf(name string) (consumer string, of history.Span, ok bool) {
	consumer, part, split := strings.Cut(name, "#")
	if !split {
		return consumer, history.Span{Last: slots - 1}, true
	}
	first, last, _ := strings.Cut(part, "-")
	var err1, err2 error
	of.First, err1 = strconv.ParseInt(first, 16, 64)
	of.Last, err2 = strconv.ParseInt(last, 16, 64)
	return consumer, of, err1 == nil && err2 == nil && len(first) == 3 && len(last) == 3 && 0 <= of.First && of.First <= of.Last
}

// wants reports whether a consumer, or a range of it, must get an event.
func wants(c history.Scope, e history.Event) bool {
	_, of, ok := slotsOf(c.Name)
	return c.Wants(e.Type) && ok && of.Holds(slotOf(e))
}

// selects reports whether a build of a consumer selects an event. A consumer with several builds is
// not split.
func selects(c history.Scope, e history.Event) bool {
	return wants(c, e) || c.Selects(e.Type) && !strings.Contains(c.Name, "#")
}

// within reports whether a unit, or a consumer, has all slots of the range name.
func within(name, unit string) bool {
	of, some, ok1 := slotsOf(name)
	consumer, all, ok2 := slotsOf(unit)
	return ok1 && ok2 && of == consumer && all.First <= some.First && some.Last <= all.Last
}

// inRanges returns evidence in which the ranges of each consumer in partitions are consumers, with
// names of units. A range is slots that no unit ever divided. What happened to a unit happened to
// each of its ranges, and an event belongs to one range. So a range has a checkpoint, an audit and
// an order of its own, and is judged as a consumer that is never split.
func inRanges(e *history.Evidence) *history.Evidence {
	of := map[string][]consumerRange{}
	var consumers []history.Scope
	for _, c := range e.Consumers {
		if !c.Partitioned {
			consumers = append(consumers, c)
			continue
		}
		of[c.Name] = rangesOf(e, c.Name)
		for _, r := range of[c.Name] {
			consumers = append(consumers, history.Scope{Name: r.name, Types: c.Types, AtHead: c.AtHead, NextOf: c.NextOf})
		}
	}
	if len(of) == 0 {
		return e
	}
	d := *e
	d.Consumers = consumers
	d.Ledger = nil
	for _, x := range e.Ledger {
		for _, r := range of[x.Consumer] {
			if r.Holds(slotOf(x.Event)) {
				x.Consumer, x.Epoch = r.name, r.epoch(x.Epoch)
				break
			}
		}
		d.Ledger = append(d.Ledger, x)
	}
	skip := func(s *history.Skip) (*string, *int64) { return &s.Consumer, &s.Epoch }
	standing := func(s *history.Standing) (*string, *int64) { return &s.Consumer, &s.Epoch }
	d.Skips, d.Forgotten, d.Rewatched = divide(of, e.Skips, skip), divide(of, e.Forgotten, skip), divide(of, e.Rewatched, skip)
	d.Operations = divide(of, e.Operations, func(o *history.Operation) (*string, *int64) { return &o.Consumer, &o.Epoch })
	d.Placements = divide(of, e.Placements, func(p *history.Placement) (*string, *int64) { return &p.Consumer, nil })
	d.Repairs = divide(of, e.Repairs, func(r *history.Repair) (*string, *int64) { return &r.Consumer, nil })
	d.Breaches = divide(of, e.Breaches, func(b *history.Breach) (*string, *int64) { return &b.Consumer, nil })
	d.Rest.Standings, d.Samples, d.Sightings = divide(of, e.Rest.Standings, standing), nil, nil
	for _, s := range e.Samples {
		d.Samples = append(d.Samples, divide(of, s, standing))
	}
	for _, s := range e.Sightings {
		d.Sightings = append(d.Sightings, history.Sighting{Positions: s.Positions, Standings: divide(of, s.Standings, standing)})
	}
	return &d
}

// divide replaces what is known of units by the same of their ranges. about returns the unit's name
// and, if there is one, the epoch.
func divide[T any](of map[string][]consumerRange, all []T, about func(*T) (unit *string, epoch *int64)) (divided []T) {
	for _, x := range all {
		unit, _ := about(&x)
		consumer, _, _ := strings.Cut(*unit, "#")
		if _, split := of[consumer]; !split {
			divided = append(divided, x)
		}
		for _, r := range of[consumer] {
			if !within(r.name, *unit) {
				continue
			}
			y := x
			name, epoch := about(&y)
			*name = r.name
			if epoch != nil {
				*epoch = r.epoch(*epoch)
			}
			divided = append(divided, y)
		}
	}
	return divided
}

// consumerRange is a range of a consumer's slots.
type consumerRange struct {
	history.Span
	name   string
	resets []int64 // of the range, before each reset of the consumer's units, and in the end
}

// epoch returns how often the range had been reset when units of its consumer had been reset
// ofConsumer times. Resets of any unit that a restored copy of the server has undone count as
// resets of the range.
func (r consumerRange) epoch(ofConsumer int64) int64 {
	known := int64(len(r.resets) - 1)
	return r.resets[max(0, min(ofConsumer, known))] + max(0, ofConsumer-known)
}

// rangesOf finds the ranges between the borders of all units that a consumer ever had.
func rangesOf(e *history.Evidence, consumer string) (all []consumerRange) {
	borders := []int64{0, slots}
	var resets []string
	add := func(unit string) {
		if c, of, ok := slotsOf(unit); ok && c == consumer {
			borders = append(borders, of.First, of.Last+1)
		}
	}
	for _, sample := range append(slices.Clone(e.Samples), e.Rest.Standings) {
		for _, s := range sample {
			add(s.Consumer)
		}
	}
	for _, s := range e.Sightings {
		for _, s := range s.Standings {
			add(s.Consumer)
		}
	}
	for _, s := range slices.Concat(e.Skips, e.Forgotten, e.Rewatched) {
		add(s.Consumer)
	}
	for _, b := range e.Breaches {
		add(b.Consumer)
	}
	for _, r := range e.Repairs {
		add(r.Consumer)
	}
	for _, o := range e.Operations {
		add(o.Consumer)
		if o.Kind == history.OperationReset && within(o.Consumer, consumer) {
			resets = append(resets, o.Consumer)
		}
	}
	slices.Sort(borders)
	borders = slices.Compact(borders)
	for i, first := range borders[:len(borders)-1] {
		of := history.Span{First: first, Last: borders[i+1] - 1}
		r := consumerRange{of, fmt.Sprintf("%s#%03x-%03x", consumer, of.First, of.Last), []int64{0}}
		for n, unit := range resets {
			r.resets = append(r.resets, r.resets[n]+one(within(r.name, unit)))
		}
		all = append(all, r)
	}
	return all
}
