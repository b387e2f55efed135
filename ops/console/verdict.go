package console

import (
	"fmt"
	"net/url"
	"slices"

	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// notice is an alarm, or a warning, of the overview.
type notice struct {
	state
	Address string // of the page that shows more; empty: there is none
}

const (
	alarming = "bad"  // something has failed, or does not go on
	warning  = "warn" // paused consumers, dead letters, different builds, silent workers
)

// Notices are the alarms, then the warnings. A healthy deployment has none.
func (s *snapshot) Notices() (all []notice) {
	alarm := func(address, text string) { all = append(all, notice{state{"✕", text, alarming}, address}) }
	if s.Fault != "" {
		alarm("", "The log cannot be read: "+s.Fault)
	}
	old := slices.DeleteFunc(slices.Clone(s.Blockers), func(b ops.Blocker) bool { return !s.Old(b) })
	for i, b := range old {
		if i == mostNamed {
			alarm("blocked", count(len(old)-i, "other transaction")+" may hold the log back")
			break
		}
		who := fmt.Sprintf("process %d", b.PID)
		if b.PID == 0 {
			who = "prepared transaction " + b.GID
		}
		alarm("blocked", fmt.Sprintf("%s of %s is open for %s, and may hold the log back", who, b.User, age(b.Age)))
	}
	living := len(s.living())
	if living == 0 && len(s.Consumers) > 0 {
		alarm("workers", "no worker runs")
	}
	names := map[string][]string{} // of the consumers in each state
	for _, c := range s.Consumers {
		word := s.State(c).Word
		names[word] = append(names[word], c.Name)
	}
	consumers := func(word, text string) (address, says string) {
		return "./?" + url.Values{"state": {word}}.Encode(), count(len(names[word]), "consumer") + " " + text + ": " + some(names[word], "")
	}
	for _, p := range []struct{ word, text string }{{isUnowned, "that nobody runs"}, {isSilent, "whose worker is silent"}, {isLate, "late"}} {
		if len(names[p.word]) > 0 {
			alarm(consumers(p.word, p.text))
		}
	}
	for _, t := range s.Wrong {
		if t.Kind != alarms.Builds { // a deployment is under way
			alarm(s.Further(t), cut(t.String(), maxError))
		}
	}
	return append(all, s.warnings(names, len(s.Workers)-living, consumers)...)
}

// warnings are the notices that are no alarms.
func (s *snapshot) warnings(names map[string][]string, silent int, consumers func(word, text string) (address, says string)) (all []notice) {
	if len(names[isPaused]) > 0 {
		address, says := consumers(isPaused, "paused")
		all = append(all, notice{state{"❚❚", says, warning}, address})
	}
	deadLetters := int64(0)
	for _, c := range s.Consumers {
		deadLetters += c.DeadLetters
	}
	if deadLetters > 0 {
		all = append(all, notice{state{"▲", count(deadLetters, "dead letter"), warning}, "letters"})
	}
	for _, t := range s.Wrong {
		if t.Kind == alarms.Builds {
			all = append(all, notice{state{"▲", cut(t.String(), maxError), warning}, s.Further(t)})
		}
	}
	if silent > 0 {
		all = append(all, notice{state{"▲", count(silent, "silent worker"), warning}, "workers"})
	}
	return all
}

// Verdict sums the notices up in one line.
func (s *snapshot) Verdict(notices []notice) state {
	bad, warn := 0, 0
	for _, n := range notices {
		if n.Class == alarming {
			bad++
		} else {
			warn++
		}
	}
	switch {
	case bad > 0 && warn > 0:
		return state{"✕", count(bad, "alarm") + ", " + count(warn, "warning"), alarming}
	case bad > 0:
		return state{"✕", count(bad, "alarm"), alarming}
	case warn > 0:
		return state{"▲", count(warn, "warning"), warning}
	case len(s.Consumers) == 0 && len(s.Workers) == 0:
		return state{"–", "Nothing has run yet", ""}
	}
	return state{"✓", "Healthy", "good"}
}

// Further is the page with more about a fault; empty: there is none.
func (s *snapshot) Further(t alarms.Alarm) string {
	of := func(state jobs.State) string {
		return "jobs?" + url.Values{"queue": {t.Name}, "state": {string(state)}}.Encode()
	}
	switch {
	case t.Kind == alarms.Standby, t.Kind == alarms.Server, t.Kind == alarms.Tables, t.Kind == alarms.Jobs, t.Kind == alarms.Builds && t.Name == "":
		return ""
	case t.Kind == alarms.Overdue || t.Kind == alarms.PausedSchedule:
		return "schedules"
	case t.Kind == alarms.Unadvanced:
		return "flows"
	case t.Kind == alarms.Worker || t.Kind == alarms.Consumer && t.Name == "":
		return "workers"
	case t.Kind == alarms.Consumer, t.Kind == alarms.Builds:
		return "consumer?" + url.Values{"name": {partition.Consumer(t.Name)}}.Encode()
	case t.Kind == alarms.Due && t.Name != "":
		return of(jobs.StateAvailable)
	case t.Kind == alarms.Failed && t.Name != "":
		return of(jobs.StateFailed)
	}
	return "queues"
}
