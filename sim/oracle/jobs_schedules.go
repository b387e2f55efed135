package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/sim/history"
)

// scheduleLedger is what became of a schedule.
type scheduleLedger struct {
	history.Schedule
	changes []history.ScheduleChange  // one of each transaction, in order
	ticks   map[string][]history.Tick // by the transaction that enqueued them
	version map[string]int64          // by "sim worker 2.1"
	moved   map[string]bool           // transactions that have changed the row
}

// scheduleLedgers sorts the evidence by schedules.
func (b *jobLedgers) scheduleLedgers() (all []*scheduleLedger) {
	version := map[string]int64{}
	for _, w := range b.Workers {
		version["sim "+w.Name] = w.Version
	}
	for _, s := range b.Schedules {
		one := &scheduleLedger{Schedule: s, ticks: map[string][]history.Tick{}, version: version, moved: map[string]bool{}}
		for _, c := range b.Changes {
			if c.Schedule == s.Name {
				one.add(c)
			}
		}
		for _, t := range b.Ticks {
			if t.Schedule == s.Name {
				one.ticks[t.Tx] = append(one.ticks[t.Tx], t)
			}
		}
		for _, ticks := range one.ticks {
			slices.SortFunc(ticks, func(x, y history.Tick) int { return int(x.Tick - y.Tick) })
		}
		all = append(all, one)
	}
	return all
}

// add adds a change, together with what its transaction had changed before.
func (s *scheduleLedger) add(c history.ScheduleChange) {
	s.moved[c.Tx] = true
	if n := len(s.changes); n > 0 && s.changes[n-1].Tx == c.Tx {
		last := &s.changes[n-1]
		last.Hash, last.Next, last.Paused, last.Resumed = c.Hash, c.Next, c.Paused, c.Resumed
		return
	}
	s.changes = append(s.changes, c)
}

// placed reports whether a change made the row, or gave it other times.
func placed(c history.ScheduleChange) bool { return c.Hash != "" && c.Hash != c.WasHash }

// moves reports whether a change moved a schedule on.
func moves(c history.ScheduleChange) bool {
	return c.Hash != "" && c.Hash == c.WasHash && c.Paused == c.WasPaused
}

// period is the period of a worker's times.
func (s *scheduleLedger) period(who string) int64 {
	return s.Periods[s.version[who]%int64(len(s.Periods))]
}

// between are the multiples of a period from a time on, and before another.
func between(from, to, period int64) (ticks []int64) {
	for at := (from + period - 1) / period * period; at < to; at += period {
		ticks = append(ticks, at)
	}
	return ticks
}

func clock(micros int64) string { return time.UnixMicro(micros).UTC().Format("15:04:05.000000") }

func clocks(micros []int64) string {
	var all []string
	for _, m := range micros {
		all = append(all, clock(m))
	}
	return "[" + strings.Join(all, " ") + "]"
}

func timesOf(ticks []history.Tick) (all []int64) {
	for _, t := range ticks {
		all = append(all, t.Tick)
	}
	return all
}

// due are the ticks that a change passed: those that were paused, those that nobody came
// to, and those that are to be jobs.
func (s *scheduleLedger) due(c history.ScheduleChange) (paused, missed, wanted []int64) {
	if !moves(c) {
		return nil, nil, nil
	}
	all := between(c.Was, c.Next, s.period(c.Who))
	n := 0
	for n < len(all) && (c.Paused || all[n] <= c.Resumed) {
		n++
	}
	late := max(n, len(all)-s.CatchUp)
	return all[:n], all[n:late], all[late:]
}

// ticksOnce finds ticks that are no job or several, and jobs of no tick.
func (b *jobLedgers) ticksOnce() Finding {
	f := Finding{Name: "each tick once", Rule: "a schedule that was moved on enqueued a job for each tick that it passed, but for those that were missed beyond CatchUp; none came before its time, twice, or at another time"}
	for _, s := range b.scheduleLedgers() {
		seen := map[int64]bool{}
		for _, c := range s.changes {
			_, _, wanted := s.due(c)
			got := timesOf(s.ticks[c.Tx])
			f.check(slices.Equal(got, wanted), func() string {
				return fmt.Sprintf("%s moved %s on from %s to %s at %s, with jobs for %s, wanted for %s", c.Who, s.Name, clock(c.Was), clock(c.Next), clock(c.At), clocks(got), clocks(wanted))
			})
			for _, tick := range got {
				f.check(!seen[tick], func() string { return fmt.Sprintf("%s enqueued the tick %s of %s again", c.Who, clock(tick), s.Name) })
				seen[tick] = true
			}
		}
		for tx, ticks := range s.ticks {
			f.check(s.moved[tx], func() string {
				return fmt.Sprintf("the ticks %s of %s were enqueued, and it was not moved on", clocks(timesOf(ticks)), s.Name)
			})
			for _, t := range ticks {
				f.check(t.Tick <= t.At, func() string {
					return fmt.Sprintf("the tick %s of %s was enqueued at %s, before its time", clock(t.Tick), s.Name, clock(t.At))
				})
				f.check(t.Token == fmt.Sprintf("tick %s %d", t.Schedule, t.Tick), func() string {
					return fmt.Sprintf("the tick %s of %s is job %d, which was made of %q", clock(t.Tick), s.Name, t.ID, t.Token)
				})
			}
		}
	}
	return f
}

// pauses finds ticks that became jobs although their schedule was paused.
func (b *jobLedgers) pauses() Finding {
	f := Finding{Name: "pauses", Rule: "no job was enqueued while its schedule was paused, nor later for a tick of that time"}
	for _, s := range b.scheduleLedgers() {
		var since int64
		pause := func(until int64) {
			for _, ticks := range s.ticks {
				for _, t := range ticks {
					f.check(t.At < since || t.At > until && (t.Tick < since || t.Tick > until), func() string {
						return fmt.Sprintf("%s was paused from %s to %s, and its tick %s was enqueued at %s", s.Name, clock(since), clock(until), clock(t.Tick), clock(t.At))
					})
				}
			}
			since = 0
		}
		for _, c := range s.changes {
			switch {
			case c.Paused && since == 0:
				since = c.At
			case !c.Paused && since > 0:
				pause(cmp.Or(c.Resumed, c.At)) // or somebody has removed it
			}
		}
		if since > 0 {
			const forever = 1 << 62
			pause(forever)
		}
	}
	return f
}

// times finds schedules that have other times than they were given.
func (b *jobLedgers) times() Finding {
	f := Finding{Name: "last times", Rule: "a schedule has the times of the worker that placed it last, from then on; no worker with other times moves it"}
	for _, s := range b.scheduleLedgers() {
		var period, latest int64
		for _, c := range s.changes {
			if ticks := s.ticks[c.Tx]; len(ticks) > 0 {
				latest = max(latest, ticks[len(ticks)-1].Tick)
			}
			from := c.Was
			switch {
			case placed(c):
				period, from = s.period(c.Who), latest
			case !moves(c):
				continue
			}
			f.check(s.period(c.Who) == period, func() string {
				return fmt.Sprintf("%s moved %s on, which has a tick each %v, and knows one each %v", c.Who, s.Name, micros(period), micros(s.period(c.Who)))
			})
			f.check(len(between(c.Next, c.Next+1, s.period(c.Who))) == 1 && c.Next-period <= c.At && c.Next > from, func() string {
				return fmt.Sprintf("%s moved %s on from %s to %s at %s, which has a tick each %v", c.Who, s.Name, clock(from), clock(c.Next), clock(c.At), micros(period))
			})
		}
	}
	return f
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// countSchedules counts what became of schedules.
func (b *jobLedgers) countSchedules(counts map[string]int64) {
	counts[ticksFought] = b.Fought
	for _, s := range b.scheduleLedgers() {
		removed, before := false, ""
		for _, c := range s.changes {
			paused, missed, wanted := s.due(c)
			counts[ticksPaused] += int64(len(paused))
			counts[ticksMissed] += int64(len(missed))
			counts[ticksEnqueued] += int64(len(wanted))
			counts[ticksCaughtUp] += int64(max(0, len(wanted)-1))
			switch {
			case c.Hash == "":
				removed = true
			case placed(c):
				counts[timesReplaced] += one(c.WasHash != "")
				counts[schedulesRemade] += one(removed)
				removed = false
			case len(wanted) > 0:
				counts[ticksByAnother] += one(before != "" && before != c.Who)
				before = c.Who
			}
		}
	}
}
