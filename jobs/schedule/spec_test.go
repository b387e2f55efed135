package schedule

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/store"
)

// tickAfter returns the tick of a Spec after a time.
func tickAfter(t interface{ Fatal(...any) }, s Spec, from time.Time) time.Time {
	at, err := next(s, from)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func printOf(t *testing.T, s Spec) string {
	t.Helper()
	print, _, err := fingerprint(s)
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

// The due ticks are the latest ticks that have come, whatever was missed.
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

// The row's tick may be any time, also a time just before a tick of the spec. A spec whose own
// ticks are too close is refused.
func TestDueFromARowBetweenTicks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tick := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		first := tick.Add(-time.Duration(rapid.IntRange(1, 2_000).Draw(t, "microseconds before")) * time.Microsecond)
		now := tick.Add(time.Duration(rapid.IntRange(0, 59).Draw(t, "seconds after")) * time.Second)
		got, after, err := due(Every(time.Minute), first, now, 5)
		if want := []time.Time{first, tick}; err != nil || !slices.EqualFunc(got, want, time.Time.Equal) || !after.Equal(tick.Add(time.Minute)) {
			t.Fatalf("%v, then %v, %v; want %v", got, after, err, want)
		}
		if _, _, err := due(creeping{}, first, now, 5); err == nil {
			t.Fatal("ticks that are a nanosecond apart are not refused")
		}
		if _, _, err := due(creeping{}, first, first, 5); err == nil {
			t.Fatal("ticks that are a nanosecond apart are not refused, from now on")
		}
	})
}

// creeping has ticks that are a nanosecond apart.
type creeping struct{}

func (creeping) Next(t time.Time) time.Time { return t.Add(1) }

// The times of Every are the same from any start.
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

// Daily has one tick on each day of the zone. The tick is at the clock time, unless the clock skips
// it.
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

// Ticks on the days on which the clock changes, computed by hand.
func TestDailyWhenTheClockChanges(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	for _, c := range []struct{ from, want string }{
		{"2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"}, // 2:30 is skipped: 3:00
		{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
		{"2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"}, // 2:30 occurs twice: the first
		{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
	} {
		from, _ := time.Parse(time.RFC3339, c.from)
		if got := tickAfter(t, Daily(2, 30, berlin), from).UTC().Format(time.RFC3339); got != c.want {
			t.Errorf("after %s comes %s, want %s", c.from, got, c.want)
		}
	}
}

// minutes ticks at each minute that it accepts, like a line of cron, and has no String.
type minutes func(at time.Time) bool

func (m minutes) Next(t time.Time) time.Time {
	at := t.UTC().Truncate(time.Minute).Add(time.Minute)
	for !m(at) {
		at = at.Add(time.Minute)
	}
	return at
}

// minutely, and Specs that begin alike.
var (
	minutely    = minutes(func(time.Time) bool { return true })
	twoHours    = minutes(func(at time.Time) bool { return at.Hour() < 2 })
	fullHours   = minutes(func(at time.Time) bool { return at.Minute() == 0 })
	mondays     = minutes(func(at time.Time) bool { return at.Weekday() == time.Monday })
	notDecember = minutes(func(at time.Time) bool { return at.Month() < 12 })
)

// days ticks at each midnight of the weekdays that it accepts.
type days func(day time.Weekday) bool

func (d days) Next(t time.Time) time.Time {
	at := t.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	for !d(at.Weekday()) {
		at = at.Add(24 * time.Hour)
	}
	return at
}

// Specs that are alike at the begin of 2024 have different hashes if they differ later.
func TestFingerprintSeesBeyondTheFirstTicks(t *testing.T) {
	workdays := days(func(day time.Weekday) bool { return day != time.Sunday })
	allWeek := days(func(time.Weekday) bool { return true })
	for about, pair := range map[string][2]Spec{
		"two hours of a day": {twoHours, minutely},
		"a month":            {notDecember, minutely},
		"a day of the week":  {mondays, minutely}, // 2024 began with a Monday
		"zones":              {Daily(7, 0, nil), Daily(7, 0, zone(t, "Europe/London"))},
	} {
		_, a, _ := fingerprint(pair[0])
		if _, b, _ := fingerprint(pair[1]); a != b {
			t.Errorf("%s: the first ticks differ, so this tests nothing", about)
		}
		if printOf(t, pair[0]) == printOf(t, pair[1]) {
			t.Errorf("%s: taken for the same", about)
		}
	}
	if printOf(t, workdays) == printOf(t, allWeek) {
		t.Error("days of a week: taken for the same")
	}
}

// The hashes stay the same in every build. With other hashes a rolling deployment would take every
// schedule for a changed one.
func TestFingerprintIsStable(t *testing.T) {
	for _, c := range []struct {
		spec          Spec
		hash, sampled string
	}{
		{Every(time.Hour), "67760da21aed890cdb1d87feff165cec", "556447a46a476055194cb188c23ea0ba"},
		{Daily(7, 30, zone(t, "Europe/Berlin")), "5ff27249e9bd2d0f40038933dcc0b2cf", "c7c0123c08a65ccf160e3d6efa38e59c"},
		{fullHours, "fb03d5386bdf6be968fb68e0e28b8ebd", "556447a46a476055194cb188c23ea0ba"},
	} {
		if hash, sampled, err := fingerprint(c.spec); err != nil || hash != c.hash || sampled != c.sampled {
			t.Errorf("%v: %s, %s, %v", c.spec, hash, sampled, err)
		}
	}
}

// A row keeps its tick unless the schedule has other times.
func TestPlaced(t *testing.T) {
	t.Parallel()
	at := func(clock string) time.Time {
		moment, err := time.Parse(time.RFC3339, "2026-07-01T"+clock+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return moment
	}
	hourly := &plan{Schedule: Schedule{spec: Every(time.Hour)}, hash: "h", sampled: "s"}
	now := at("10:30:00")
	for _, c := range []struct {
		about   string
		row     row
		first   time.Time
		changes bool
		beyond  bool
	}{
		{"a new row", row{hash: "h"}, at("11:00:00"), true, false},
		{"the next tick", row{hash: "h", next: at("11:00:00")}, at("11:00:00"), false, false},
		{"the next tick, of an earlier build", row{hash: "s", next: at("11:00:00")}, at("11:00:00"), false, false},
		{"never, by hand", row{hash: "h", byHand: true}, at("11:00:00"), false, false},
		{"never, by hand, before other times", row{hash: "x", byHand: true}, at("11:00:00"), true, false},
		{"a tick that is due", row{hash: "h", next: at("09:00:00")}, at("11:00:00"), false, false},
		{"a tick that is due, of an earlier build", row{hash: "s", next: at("09:00:00")}, at("11:00:00"), false, false},
		{"due, and no tick", row{hash: "h", next: at("09:10:00")}, at("11:00:00"), true, false},
		{"due, and no tick, of an earlier build", row{hash: "s", next: at("09:10:00")}, at("11:00:00"), true, false},
		{"a later tick", row{hash: "h", next: at("12:00:00")}, at("11:00:00"), true, true},
		{"a later tick, of an earlier build", row{hash: "s", next: at("12:00:00")}, at("11:00:00"), true, true},
		{"a tick too many", row{hash: "s", next: at("10:45:00")}, at("11:00:00"), true, false},
		{"no tick, of an earlier build", row{hash: "s"}, at("11:00:00"), true, true},
		{"other times", row{hash: "x", next: at("11:00:00")}, at("11:00:00"), true, false},
		{"other times, and due", row{hash: "x", next: at("09:00:00")}, at("11:00:00"), true, false},
		{"the clock was set back", row{hash: "h", next: at("12:00:00"), last: at("11:00:00")}, at("12:00:00"), false, false},
		{"the clock was set back by ticks", row{hash: "h", next: at("13:00:00"), last: at("12:00:00")}, at("11:00:00"), true, true},
		{"the clock was set back, of an earlier build", row{hash: "s", next: at("12:00:00"), last: at("11:00:00")}, at("12:00:00"), false, false},
	} {
		first, changes, err := hourly.placed(c.row, now)
		if err != nil || !first.Equal(c.first) || changes != c.changes {
			t.Errorf("%s: %v, changes %t, %v", c.about, first, changes, err)
		}
		if got := hourly.beyond(c.row, now); got != c.beyond {
			t.Errorf("%s: beyond %t", c.about, got)
		}
	}
	each := &plan{Schedule: Schedule{spec: Every(time.Second)}, hash: "h"}
	for last, want := range map[time.Time]time.Time{at("10:30:50"): at("10:30:51"), at("10:31:50"): at("10:30:01")} {
		if first, _, err := each.placed(row{hash: "h", next: last.Add(time.Second), last: last}, now); err != nil || !first.Equal(want) {
			t.Errorf("each second, the clock was set back from %v: %v, %v", last, first, err)
		}
	}
}

// Specs with the same times and the same text have the same hash; others do not.
func TestFingerprint(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	same := [][2]Spec{{Every(60 * time.Minute), Every(time.Hour)}, {Daily(7, 0, nil), Daily(7, 0, time.UTC)}, {Daily(7, 0, berlin), Daily(7, 0, zone(t, "Europe/Berlin"))}}
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

// From '-infinity' on, the latest ticks are due, also if there are fewer than the limit.
func TestDueFromMinusInfinity(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := drawTicks(t)
		now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.Int64Range(0, 2_000_000_000).Draw(t, "now")) * time.Second)
		limit := rapid.IntRange(1, 50).Draw(t, "limit")
		var want []time.Time
		at := tickAfter(t, spec, store.EarliestTime)
		for ; !at.IsZero() && !at.After(now); at = tickAfter(t, spec, at) {
			want = append(want, at)
		}
		want = want[max(0, len(want)-limit):]
		if got, after, err := due(spec, store.EarliestTime, now, limit); err != nil || !slices.Equal(got, want) || after != at {
			t.Fatalf("due: %v and then %v, %v, want %v and %v", got, after, err, want, at)
		}
	})
}
