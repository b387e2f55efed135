package schedule

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"time"

	"github.com/pgfrontier/worker/store"
)

// Spec defines the times of a schedule. The schedules of github.com/robfig/cron are Specs.
//
// Next must depend on its argument alone, so that all processes compute the same times. The times
// are at least a millisecond apart, and not after the year 9999.
//
// A Spec may have a method String() string, as [fmt.Stringer]. Two Specs with different texts are
// different schedules. The text must be the same in all processes: it must not contain addresses or
// the current time. The Specs of this package have a String.
type Spec interface {
	// Next returns the first time after t, or the zero time if there is none.
	Next(t time.Time) time.Time
}

type every struct{ period time.Duration }

// Every ticks at each multiple of a period, counted from the beginning of the year 1 in UTC: for an
// hour, at the full hours. The minimum is a second.
func Every(period time.Duration) Spec { return every{period} }

func (e every) Next(t time.Time) time.Time { return t.UTC().Truncate(e.period).Add(e.period) }

func (e every) String() string { return "every " + e.period.String() }

func (e every) check() error {
	if e.period < time.Second {
		return fmt.Errorf("Every: %v is out of range, it takes a second or more", e.period)
	}
	return nil
}

type daily struct {
	hour, minute int
	zone         *time.Location
}

// Daily ticks once a day, at a clock time in a zone. A nil zone is UTC. If the clock skips the
// time, because it is put forward, the tick is at the first moment after it. If the time occurs
// twice, because the clock is put back, the tick is at the first occurrence.
func Daily(hour, minute int, zone *time.Location) Spec {
	if zone == nil {
		zone = time.UTC
	}
	return daily{hour, minute, zone}
}

func (d daily) Next(t time.Time) time.Time {
	year, month, day := t.In(d.zone).Date()
	for ; ; day++ {
		if at := d.on(year, month, day); at.After(t) {
			return at
		}
	}
}

// on returns the tick of a day. The number of the day may exceed its month.
func (d daily) on(year int, month time.Month, day int) time.Time {
	at := time.Date(year, month, day, d.hour, d.minute, 0, 0, d.zone)
	begin, end := at.ZoneBounds()
	if at.Hour() != d.hour || at.Minute() != d.minute { // the clock skips this time
		if !begin.IsZero() && at.Sub(begin) < 24*time.Hour {
			return begin
		}
		return end
	}
	if begin.IsZero() {
		return at
	}
	_, now := at.Zone()
	_, before := begin.Add(-time.Nanosecond).Zone()
	if first := at.Add(time.Duration(now-before) * time.Second); first.Before(begin) && now < before {
		return first
	}
	return at
}

func (d daily) String() string {
	return fmt.Sprintf("daily at %d:%02d in %s", d.hour, d.minute, d.zone)
}

func (d daily) check() error {
	if d.hour < 0 || d.hour > 23 || d.minute < 0 || d.minute > 59 {
		return fmt.Errorf("Daily: %d:%02d is no time of a day, it takes 0 to 23 and 0 to 59", d.hour, d.minute)
	}
	return nil
}

// apart is the minimum distance between two ticks.
const apart = time.Millisecond

// next returns the next time of a Spec in microseconds, the precision of the database.
func next(s Spec, t time.Time) (time.Time, error) {
	at := s.Next(t)
	switch {
	case at.IsZero():
		return time.Time{}, nil
	case !at.After(t):
		return at, fmt.Errorf("the Next of the spec, asked for a time after %v, returned %v: it must return a later time, or the zero time if there is none", t, at)
	case at.UTC().Year() > 9999:
		return at, fmt.Errorf("the Next of the spec, asked for a time after %v, returned one in the year %d: allowed are those to 9999; return the zero time if there is none", t, at.UTC().Year())
	}
	if whole := at.Truncate(time.Microsecond); whole.Before(at) {
		return whole.Add(time.Microsecond), nil
	}
	return at, nil
}

// following returns the tick after another tick.
func following(s Spec, tick time.Time) (time.Time, error) {
	at, err := next(s, tick)
	if err == nil && !at.IsZero() && at.Sub(tick) < apart {
		err = fmt.Errorf("the spec has ticks at %v and at %v: they must be %v apart, or more", tick, at, apart)
	}
	return at, err
}

// afterRow returns the spec's tick after the row's tick. If the row's tick is no tick of the spec,
// such as one set by hand, the distance may be less than [apart].
func afterRow(s Spec, tick time.Time) (time.Time, error) {
	at, err := next(s, tick)
	if err != nil || at.IsZero() || at.Sub(tick) >= apart {
		return at, err
	}
	if own, err := next(s, tick.Add(-time.Microsecond)); err != nil || own.Equal(tick) {
		return following(s, tick)
	}
	_, err = following(s, at)
	return at, err
}

// These samples make the fingerprint. Samples of the second kind are taken at all hours, minutes
// and seasons of two years. The years are past, so that all releases of the time zone database
// agree on them.
const (
	sampleTicks  = 50
	sampleProbes = 512
	probeStep    = 35*time.Hour + 17*time.Minute + 23*time.Second
)

// fingerprint returns a hash that distinguishes Specs. The same times with the same String have the
// same hash in every process and build. sampled is the hash of earlier builds. It samples only the
// first ticks of 2024, so different Specs may share it.
func fingerprint(s Spec) (hash, sampled string, err error) {
	begin := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	h := sha256.New()
	at, err := next(s, begin)
	for n := 0; n < sampleTicks && err == nil && !at.IsZero(); n++ {
		fmt.Fprintln(h, at.UnixMicro())
		at, err = following(s, at)
	}
	sampled = hex.EncodeToString(h.Sum(nil)[:16])
	for n := 0; n < sampleProbes && err == nil; n++ {
		at, err = next(s, begin.Add(time.Duration(n)*probeStep))
		fmt.Fprintln(h, at.UnixMicro())
	}
	if named, is := s.(fmt.Stringer); is {
		fmt.Fprintln(h, named.String())
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), sampled, err
}

// placed returns the next tick for the row of a schedule when a Scheduler starts, and whether the
// row must change. The row keeps an infinite tick, which was set by hand. The row also keeps a due
// tick unless the schedule has other times; otherwise a start would drop the tick.
//
// If the database's clock was set back, no tick is placed twice. Exception: if it was set back by
// more than a minute and by several ticks, the schedule continues from now. Otherwise it would not
// tick until the clock is back at its old time.
func (p *plan) placed(r row, now time.Time) (first time.Time, changes bool, err error) {
	same := r.hash == p.hash || r.hash == p.sampled
	if first, err = next(p.spec, now); err == nil && same && r.last.After(now) {
		var second time.Time
		if r.last.Sub(now) > late && !first.IsZero() {
			second, err = next(p.spec, first)
		}
		if err == nil && (second.IsZero() || second.After(r.last)) {
			first, err = next(p.spec, r.last)
		}
	}
	if err != nil {
		return first, false, err
	}
	switch {
	case same && r.byHand:
		return first, false, nil
	case !same, r.next.IsZero():
		return first, true, nil
	case r.next.After(now):
		return first, !r.next.Equal(first), nil
	}
	at, err := next(p.spec, r.next.Add(-time.Microsecond))
	return first, !at.Equal(r.next), err
}

// beyond reports whether the row's next tick is later than the schedule's. One cause is that the
// database's clock was set back. Another is a program with other times but the same sample, which
// has advanced the row, or left the row without a tick.
func (p *plan) beyond(r row, now time.Time) bool {
	if r.hash != p.hash && r.hash != p.sampled || !r.next.After(now) && (!r.next.IsZero() || r.hash == p.hash) {
		return false
	}
	first, changes, err := p.placed(r, now)
	return err == nil && changes && !first.IsZero() && (r.next.IsZero() || first.Before(r.next))
}

// due returns the latest ticks from first to now, limit at most. It also returns the first tick
// after now, the zero time if there is none. first is the row's tick. It is a tick of the spec, a
// time set by hand, or store.EarliestTime. The last stands for '-infinity' and is no tick.
func due(s Spec, first, now time.Time, limit int) (ticks []time.Time, after time.Time, err error) {
	// After a long outage many ticks are missed. The search goes further back until there are
	// enough ticks.
	for back := time.Minute; ; back *= 2 {
		from := now.Add(-back)
		if back > math.MaxInt64/2 || !from.After(first) { // twice as much overflows time.Duration
			from = first
		}
		ticks = nil
		at := first
		if from.After(first) || first.Equal(store.EarliestTime) {
			at, err = next(s, from)
		}
		for err == nil && !at.IsZero() && !at.After(now) {
			ticks = append(ticks, at)
			if at.Equal(first) {
				at, err = afterRow(s, at)
			} else {
				at, err = following(s, at)
			}
		}
		if err != nil || len(ticks) >= limit || !from.After(first) {
			return ticks[max(0, len(ticks)-limit):], at, err
		}
	}
}
