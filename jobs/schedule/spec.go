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
// It must be a function of its argument alone: every process computes the same times.
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

// next is the Next of a Spec in microseconds, as the database keeps times.
func next(s Spec, t time.Time) time.Time {
	at := s.Next(t)
	if at.IsZero() || !at.After(t) {
		return time.Time{}
	}
	if whole := at.Truncate(time.Microsecond); whole.Before(at) {
		return whole.Add(time.Microsecond)
	}
	return at
}

// fingerprint tells Specs apart by what they do: the same times have the same one in
// every process and build.
func fingerprint(s Spec) string {
	const ticks = 50
	h := sha256.New()
	at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for range ticks {
		if at = next(s, at); at.IsZero() {
			break
		}
		fmt.Fprintln(h, at.UnixMicro())
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// due returns the latest ticks from first on that are not after now, limit at most,
// and the first tick after now, the zero time if there is none.
func due(s Spec, first, now time.Time, limit int) (ticks []time.Time, after time.Time) {
	// A long outage has missed many: look from ever further back until there are enough.
	for back := time.Minute; ; back *= 2 {
		from := now.Add(-back)
		ticks = nil
		at := first
		if from.After(first) {
			at = next(s, from)
		}
		for ; !at.IsZero() && !at.After(now); at = next(s, at) {
			ticks = append(ticks, at)
		}
		if len(ticks) >= limit || !from.After(first) {
			return ticks[max(0, len(ticks)-limit):], at
		}
	}
}
