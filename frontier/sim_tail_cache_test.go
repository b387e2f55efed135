package frontier

import (
	"slices"
	"strconv"

	"github.com/pgfrontier/worker/store"
)

// persisted returns the event as statements return it.
func (e event) persisted() store.PersistedEvent {
	return store.PersistedEvent{
		GlobalPosition: e.position, AggregateID: strconv.Itoa(e.agg), AggregateVersion: int64(e.version), EventVersion: e.uid,
	}
}

func recalled(p store.PersistedEvent) event {
	agg, _ := strconv.Atoi(p.AggregateID)
	return event{position: p.GlobalPosition, agg: agg, version: int(p.AggregateVersion), uid: p.EventVersion}
}

// shared returns the events of the tail cache for a consumer, if the consumer may use the
// cache.
func (s *sim) shared(v *Value, checkpoint int64, open []store.Range) (rows []event, full, ok bool) {
	events, ok := v.Since(checkpoint)
	if !ok || len(open) > 0 && s.mutant != cacheServesWatchers {
		return nil, false, false
	}
	for _, e := range events {
		s.seen["tail cache"]++
		if len(rows) == s.rows {
			return rows, true, true
		}
		rows = append(rows, recalled(e))
	}
	return rows, false, true
}

// misplaced returns a wrong tail cache for a Value, as a mutant makes it.
func (s *sim) misplaced(f *simFrontier, old, v *Value) *recent {
	r, anew := v.recent, f.from != f.machine
	switch s.mutant {
	case cacheOutlivesToken:
		if anew && old.Token != v.Token && old.Token != "" {
			f.kept = old
		}
		if k := f.kept; k != nil && k.Safe >= r.after {
			known := k.recent.events
			known = known[:len(known)-len(above(known, v.Safe))]
			return &recent{k.recent.after, slices.Concat(known, above(r.events, k.Safe))}
		}
	case cacheOutlivesSession:
		if anew && old.Token == v.Token {
			f.kept = old
		}
		if k := f.kept; k != nil && k.Token == v.Token {
			return k.recent.then(r)
		}
	case cacheOverDoubts:
		if len(v.Doubts) > 0 && old.Token == v.Token && !anew && old.recent.after < r.after {
			r = old.recent.then(&recent{old.Safe, s.visible(old.Safe, v.Safe)})
			f.kept = &Value{Safe: v.Safe, recent: r}
		}
		if k := f.kept; k != nil && !anew && k.Safe >= r.after {
			return k.recent.then(r)
		}
		f.kept = nil
	case cacheFromTheFirst:
		return (&recent{}).then(r)
	case cacheReadsOnce:
		var seen []store.PersistedEvent
		for _, e := range r.events {
			if f.tailed[e.GlobalPosition] {
				seen = append(seen, e)
			}
		}
		return &recent{r.after, seen}
	}
	return r
}

// then appends the events of a later tail cache to an earlier one.
func (r *recent) then(later *recent) *recent {
	if r == nil || r.after >= later.after {
		return later
	}
	end := len(r.events) - len(above(r.events, later.after))
	return &recent{r.after, slices.Concat(r.events[:end], later.events)}
}

func (s *sim) visible(after, upTo int64) (events []store.PersistedEvent) {
	for _, position := range slices.Sorted(func(yield func(int64) bool) {
		for p := range s.disk.events {
			if p > after && p <= upTo && !yield(p) {
				return
			}
		}
	}) {
		events = append(events, s.disk.events[position].persisted())
	}
	return events
}
