package schedule

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Spec tells the times of a schedule. The schedules of github.com/robfig/cron are
// Specs.
//
// It must be a function of its argument alone: every process computes the same times. They
// are a millisecond apart, or more, and not after the year 9999.
type Spec interface {
	// Next returns the first time after t, or the zero time if there is none.
	Next(t time.Time) time.Time
}

type every struct{ period time.Duration }

// Every is each multiple of a period, counted from the beginning of the year 1 in
// UTC: the full hours for an hour. A period takes a second or more.
func Every(period time.Duration) Spec { return every{period} }

func (e every) Next(t time.Time) time.Time { return t.UTC().Truncate(e.period).Add(e.period) }

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

// Daily is once a day, at a time of a clock in a zone. A nil zone is UTC. A time that
// the clock leaves out when it is put forward is the moment after it; of a time that
// comes twice, when the clock is put back, it is the first.
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

// on is the time on a day. A day may be beyond its month.
func (d daily) on(year int, month time.Month, day int) time.Time {
	at := time.Date(year, month, day, d.hour, d.minute, 0, 0, d.zone)
	begin, end := at.ZoneBounds()
	if at.Hour() != d.hour || at.Minute() != d.minute { // left out
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

func (d daily) check() error {
	if d.hour < 0 || d.hour > 23 || d.minute < 0 || d.minute > 59 {
		return fmt.Errorf("Daily: %d:%02d is no time of a day, it takes 0 to 23 and 0 to 59", d.hour, d.minute)
	}
	return nil
}

// apart is how long after a tick the next one may come.
const apart = time.Millisecond

// next is the Next of a Spec in microseconds, as the database keeps times.
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

// following is the tick after another.
func following(s Spec, tick time.Time) (time.Time, error) {
	at, err := next(s, tick)
	if err == nil && !at.IsZero() && at.Sub(tick) < apart {
		err = fmt.Errorf("the spec has ticks at %v and at %v: they must be %v apart, or more", tick, at, apart)
	}
	return at, err
}

// fingerprint tells Specs apart by what they do: the same times have the same one in
// every process and build.
func fingerprint(s Spec) (string, error) {
	const ticks = 50
	h := sha256.New()
	at, err := next(s, time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC))
	for n := 0; n < ticks && err == nil && !at.IsZero(); n++ {
		fmt.Fprintln(h, at.UnixMicro())
		at, err = following(s, at)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), err
}

// due returns the latest ticks from first on that are not after now, limit at most,
// and the first tick after now, the zero time if there is none.
func due(s Spec, first, now time.Time, limit int) (ticks []time.Time, after time.Time, err error) {
	// A long outage has missed many: look from ever further back until there are enough.
	for back := time.Minute; ; back *= 2 {
		from := now.Add(-back)
		ticks = nil
		at := first
		if from.After(first) {
			at, err = next(s, from)
		}
		for err == nil && !at.IsZero() && !at.After(now) {
			ticks = append(ticks, at)
			at, err = following(s, at)
		}
		if err != nil || len(ticks) >= limit || !from.After(first) {
			return ticks[max(0, len(ticks)-limit):], at, err
		}
	}
}
