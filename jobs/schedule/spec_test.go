package schedule

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// tickAfter is the tick of a Spec after a time.
func tickAfter(t interface{ Fatal(...any) }, s Spec, from time.Time) time.Time {
	at, err := next(s, from)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func printOf(t *testing.T, s Spec) string {
	t.Helper()
	print, err := fingerprint(s)
	if err != nil {
		t.Fatal(err)
	}
	return print
}

// irregular has ticks at drawn distances.
type irregular []time.Time

func (ticks irregular) Next(t time.Time) time.Time {
	i, found := slices.BinarySearchFunc(ticks, t, time.Time.Compare)
	for found && i < len(ticks) && !ticks[i].After(t) {
		i++
	}
	if i == len(ticks) {
		return time.Time{}
	}
	return ticks[i]
}

func drawTicks(t *rapid.T) irregular {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ticks := irregular{}
	for range rapid.IntRange(0, 40).Draw(t, "ticks") {
		at = at.Add(time.Duration(rapid.SampledFrom([]int{1, 30, 60, 3_600, 90_000, 40_000_000}).Draw(t, "distance")) * time.Second)
		ticks = append(ticks, at)
	}
	return ticks
}

// What is due are the latest ticks that have come, whatever was missed.
func TestDueIsTheLatestOfTheMissed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := drawTicks(t)
		if len(spec) == 0 {
			return
		}
		first := rapid.SampledFrom(spec).Draw(t, "first")
		now := first.Add(time.Duration(rapid.Int64Range(0, 100_000_000).Draw(t, "later")) * time.Second)
		limit := rapid.IntRange(1, 5).Draw(t, "limit")
		var want []time.Time
		at := first
		for ; !at.IsZero() && !at.After(now); at = tickAfter(t, spec, at) {
			want = append(want, at)
		}
		want = want[max(0, len(want)-limit):]
		if got, after, err := due(spec, first, now, limit); err != nil || !slices.Equal(got, want) || after != at {
			t.Fatalf("due: %v and then %v, %v, want %v and %v", got, after, err, want, at)
		}
	})
}

// The times of Every are the same wherever one begins.
func TestEvery(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		period := time.Duration(rapid.Int64Range(1, 1_000_000).Draw(t, "seconds")) * time.Second
		from := time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "from"))
		at := tickAfter(t, Every(period), from)
		if !at.After(from) || at.Sub(from) > period || !at.Equal(at.Truncate(period)) {
			t.Fatalf("after %v comes %v", from, at)
		}
		if again := tickAfter(t, Every(period), at); again.Sub(at) != period {
			t.Fatalf("after %v comes %v", at, again)
		}
	})
}

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kolkata", "Africa/Cairo"}

func zone(t interface{ Fatal(...any) }, name string) *time.Location {
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Daily has one time for each day that the zone has, at the clock's time unless that
// day leaves it out.
func TestDaily(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := zone(t, rapid.SampledFrom(zones).Draw(t, "zone"))
		hour, minute := rapid.IntRange(0, 23).Draw(t, "hour"), rapid.IntRange(0, 59).Draw(t, "minute")
		at := time.Unix(rapid.Int64Range(1_000_000_000, 2_000_000_000).Draw(t, "from"), 0).In(l)
		spec := Daily(hour, minute, l)
		at = tickAfter(t, spec, at).In(l)
		for range 400 {
			after := tickAfter(t, spec, at).In(l)
			if d := after.Sub(at); d < 20*time.Hour || d > 50*time.Hour {
				t.Fatalf("%d:%02d: after %v comes %v", hour, minute, at, after)
			}
			if after.Hour() != hour || after.Minute() != minute {
				begin, _ := after.ZoneBounds()
				if !begin.Equal(after) {
					t.Fatalf("%d:%02d is %v, which is not the moment after the gap", hour, minute, after)
				}
			} else if before := after.Add(-time.Hour); before.Hour() == hour && before.Minute() == minute {
				t.Fatalf("%d:%02d is %v, the second of two", hour, minute, after)
			}
			at = after
		}
	})
}

// The days on which the clock changes, by hand.
func TestDailyWhenTheClockChanges(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	for _, c := range []struct{ from, want string }{
		{"2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"}, // 2:30 is left out: 3:00
		{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
		{"2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"}, // 2:30 comes twice: the first
		{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
	} {
		from, _ := time.Parse(time.RFC3339, c.from)
		if got := tickAfter(t, Daily(2, 30, berlin), from).UTC().Format(time.RFC3339); got != c.want {
			t.Errorf("after %s comes %s, want %s", c.from, got, c.want)
		}
	}
}

// Specs with the same times are the same, others are not.
func TestFingerprint(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	same := [][2]Spec{{Every(24 * time.Hour), Daily(0, 0, nil)}, {Daily(7, 0, berlin), Daily(7, 0, zone(t, "Europe/Berlin"))}}
	for _, s := range same {
		if printOf(t, s[0]) != printOf(t, s[1]) {
			t.Errorf("%v and %v differ", s[0], s[1])
		}
	}
	others := []Spec{Every(time.Second), Every(time.Minute), Daily(7, 0, berlin), Daily(7, 0, nil), Daily(7, 1, berlin), irregular{}}
	for i, a := range others {
		for _, b := range others[:i] {
			if printOf(t, a) == printOf(t, b) {
				t.Errorf("%v and %v are taken for the same", a, b)
			}
		}
	}
}
