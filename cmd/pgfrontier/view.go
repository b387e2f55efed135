package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// view is how everything stands at a moment.
type view struct {
	at        time.Time
	log       ops.Log
	fault     *frontier.SetupError // of the log, which was not read then; nil: none
	workers   []ops.Worker
	consumers []ops.Consumer
	wrong     []alarms.Alarm
	before    *view // the poll before; nil: no rates
}

func (a *app) poll(ctx context.Context) (v view, err error) {
	o, err := a.operator(ctx)
	if err != nil {
		return v, err
	}
	ctx, cancel := a.bound(ctx)
	defer cancel()
	v.at = time.Now()
	if v.consumers, err = o.Consumers(ctx); err != nil {
		return v, err
	}
	if v.workers, err = o.Workers(ctx); err != nil {
		return v, err
	}
	if v.log, err = o.Log(ctx); errors.As(err, &v.fault) {
		err = nil
	}
	return v, err
}

// pollAll is a poll with what is wrong.
func (a *app) pollAll(ctx context.Context) (v view, err error) {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	if v, err = a.poll(ctx); err != nil {
		return v, err
	}
	names, err := a.names()
	if err != nil {
		return v, err
	}
	v.wrong, err = alarms.Find(ctx, a.db, names, v.consumers, v.workers, placeOf)
	return v, err
}

// late says what has waited for longer than maxAge.
func (v view) late(maxAge time.Duration) (reasons []string) {
	if v.fault != nil {
		reasons = append(reasons, v.fault.Error())
	}
	if v.log.OldestOpen > maxAge {
		reasons = append(reasons, fmt.Sprintf("a transaction has held the log back for %s: see pgfrontier blocked", short(v.log.OldestOpen)))
	}
	for _, c := range v.consumers {
		if c.OldestAge > maxAge {
			reasons = append(reasons, fmt.Sprintf("consumer %s: an event has been waiting for %s above position %d (%s)", c.Name, short(c.OldestAge), c.Position, v.state(c)))
		}
	}
	return reasons
}

// state is a consumer's in one word or two.
func (v view) state(c ops.Consumer) string {
	if c.RenamedTo != "" {
		return stateRenamed
	}
	if len(c.Units) == 0 {
		return v.unitState(c.Paused, c.Worker)
	}
	count := map[string]int{}
	for _, u := range c.Units {
		count[v.unitState(u.Paused, u.Worker)]++
	}
	for _, state := range []string{statePaused, stateUnowned, stateSilent} {
		switch n := count[state]; n {
		case 0:
		case len(c.Units):
			return state
		default:
			return fmt.Sprintf("%d/%d %s", n, len(c.Units), state)
		}
	}
	return stateRuns
}

// stateText is the state for people.
func (v view) stateText(c ops.Consumer) string {
	if c.Shadow {
		return v.state(c) + ", shadow"
	}
	return v.state(c)
}

// The states of a consumer.
const (
	stateRuns    = "runs"
	statePaused  = "paused"
	stateUnowned = "unowned" // no worker has it
	stateSilent  = "silent"  // its worker's heartbeat is old, or gone
	stateRenamed = "renamed" // what is left under an old name
)

func (v view) unitState(p *ops.Pause, worker uuid.UUID) string {
	switch {
	case p != nil:
		return statePaused
	case worker == uuid.Nil:
		return stateUnowned
	case !slices.ContainsFunc(v.living(), func(w ops.Worker) bool { return w.ID == worker }):
		return stateSilent
	}
	return stateRuns
}

// living are the workers whose heartbeat is fresh.
func (v view) living() (all []ops.Worker) {
	for _, w := range v.workers {
		if !alarms.IsSilent(w) {
			all = append(all, w)
		}
	}
	return all
}

// place of a worker in words: what operators search for is the host and the process.
func (v view) place(id uuid.UUID) string {
	for _, w := range v.workers {
		if w.ID == id {
			return placeOf(w)
		}
	}
	if id == uuid.Nil {
		return "-"
	}
	return id.String()
}

func placeOf(w ops.Worker) string { return fmt.Sprintf("%s/%d", dash(w.Host), w.PID) }

// where a consumer runs.
func (v view) where(c ops.Consumer) string {
	if n := len(c.Units); n > 0 {
		return fmt.Sprintf("%d units", n)
	}
	return v.place(c.Worker)
}

func (v view) text() string {
	var f facts
	v.logFacts(&f)
	v.wrongFacts(&f, len(v.wrong), longest)
	if len(v.consumers) == 0 {
		return f.String() + "no consumer has run yet\n"
	}
	titles := []string{"CONSUMER", ">POSITION", ">BEHIND", ">OLDEST", "STATE", ">DEAD"}
	if v.before != nil {
		titles = append(titles, ">EV/S")
	}
	t := newTable(append(titles, "~WORKER")...)
	for _, c := range v.consumers {
		cells := []any{c.Name, c.Position, c.HeadLag, short(c.OldestAge), v.stateText(c), c.DeadLetters}
		if v.before != nil {
			cells = append(cells, v.rateText(c))
		}
		t.row(append(cells, v.where(c))...)
	}
	return f.String() + "\n" + t.String()
}

// logFacts are how far the log is, and the workers.
func (v view) logFacts(f *facts) {
	if v.fault != nil {
		f.add("log", "%v", v.fault)
	} else {
		f.add("log", "head %d, settled %d, safe %d", v.log.Head, v.log.Settled, v.log.Safe)
	}
	if v.log.Open > 0 {
		what := "transactions that have"
		if v.log.Open == 1 {
			what = "transaction that has"
		}
		f.add("open", "%d %s drawn positions, the oldest %s", v.log.Open, what, short(v.log.OldestOpen))
	}
	living := len(v.living())
	if silent := len(v.workers) - living; silent > 0 {
		f.add("workers", "%d, and %d silent, %s", living, silent, v.leader())
	} else {
		f.add("workers", "%d, %s", living, v.leader())
	}
}

const longest = 400 // characters of what is wrong: an error has the beginning that matters

// wrongFacts are the first things that are wrong, a line of so many characters each.
func (v view) wrongFacts(f *facts, most, wide int) {
	for i, t := range v.wrong {
		if rest := len(v.wrong) - i; i == most-1 && rest > 1 {
			f.add("wrong", "%d more; see pgfrontier status", rest)
			return
		}
		see := "; see " + further(t)
		f.add("wrong", "%s", cut(clean(t.String()), max(wide-factsWide-utf8.RuneCountInString(see), 20))+see)
	}
}

// further is the command that shows more of what is wrong.
func further(t alarms.Alarm) string {
	name := t.Name
	if !typeable.MatchString(name) {
		name = "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
	}
	of := func(state jobs.State) string {
		return fmt.Sprintf("pgfrontier jobs list --queue %s --state %s", name, state)
	}
	switch {
	case t.Kind == alarms.Standby, t.Kind == alarms.Server, t.Kind == alarms.Tables:
		return "pgfrontier doctor"
	case t.Kind == alarms.Jobs:
		return "pgfrontier jobs workers"
	case t.Kind == alarms.Builds && t.Name == "":
		return "pgfrontier doctor"
	case t.Kind == alarms.Worker:
		return "pgfrontier workers"
	case t.Kind == alarms.Overdue || t.Kind == alarms.PausedSchedule:
		return "pgfrontier jobs schedules"
	case t.Kind == alarms.Unadvanced:
		return "pgfrontier jobs flows list --state running"
	case t.Kind == alarms.Consumer && t.Name == "":
		return "pgfrontier workers -o json"
	case t.Kind == alarms.Consumer, t.Kind == alarms.Builds:
		return "pgfrontier consumer " + name
	case t.Kind == alarms.Due && t.Name != "":
		return of(jobs.StateAvailable)
	case t.Kind == alarms.Failed && t.Name != "":
		return of(jobs.StateFailed)
	}
	return "pgfrontier jobs queues"
}

func (v view) leader() string {
	leaders := v.leaders()
	if len(leaders) == 0 {
		return "none leads"
	}
	return "led by " + list(leaders)
}

// leaders are the living workers that say that they lead.
func (v view) leaders() (all []string) {
	for _, w := range v.living() {
		if w.Leader {
			all = append(all, placeOf(w))
		}
	}
	return all
}

// after makes v the poll after another, if there was one.
func (v *view) after(before *view) {
	if before != nil {
		last := *before
		last.before = nil
		v.before = &last
	}
}

// rate is how many positions a second a consumer has gone since the poll before.
func (v view) rate(c ops.Consumer) (rate float64, known bool) {
	if v.before == nil {
		return 0, false
	}
	for _, b := range v.before.consumers {
		if passed := v.at.Sub(v.before.at).Seconds(); b.Name == c.Name && passed > 0 {
			return float64(c.Position-b.Position) / passed, true
		}
	}
	return 0, false
}

func (v view) rateText(c ops.Consumer) string {
	if rate, known := v.rate(c); known {
		return fmt.Sprintf("%.0f", rate)
	}
	return "-"
}

func (v view) object() object {
	log := object{
		"head": v.log.Head, "settled": v.log.Settled, "safe": v.log.Safe,
		"open_transactions": v.log.Open, "oldest_open_seconds": seconds(v.log.OldestOpen),
	}
	if v.fault != nil {
		log = object{"error": v.fault.Error()}
	}
	return object{
		"log":       log,
		"workers":   len(v.living()),
		"silent":    len(v.workers) - len(v.living()),
		"leaders":   listed(v.leaders(), func(place string) string { return place }),
		"consumers": listed(v.consumers, v.consumer),
		"wrong": listed(v.wrong, func(t alarms.Alarm) object {
			return object{"kind": t.Kind, "name": t.Name, "says": t.Text, "see": further(t)}
		}),
	}
}

func (v view) consumer(c ops.Consumer) object {
	return object{
		"name": c.Name, "position": c.Position, "behind": c.HeadLag, "oldest_age_seconds": seconds(c.OldestAge), "state": v.state(c), "renamed_to": c.RenamedTo, "shadow": c.Shadow,
		"revision": c.Revision, "updated_at": c.UpdatedAt, "paused": paused(c.Paused), "worker": owner(c.Worker),
		"open_ranges": c.OpenRanges, "dead_letters": c.DeadLetters, "selects": selects(c.Scope), "partitions_wanted": c.Wanted, "partitions_fixed": c.Fixed,
		"units": listed(c.Units, func(u ops.Unit) object {
			return object{
				"name": u.Name, "partition": u.Partition, "key": u.Key, "position": u.Position, "behind": u.HeadLag,
				"oldest_age_seconds": seconds(u.OldestAge), "state": v.unitState(u.Paused, u.Worker), "revision": u.Revision,
				"paused": paused(u.Paused), "worker": owner(u.Worker), "open_ranges": u.OpenRanges, "dead_letters": u.DeadLetters,
			}
		}),
	}
}

// selects is null if no scope is recorded. An empty list of types means all types.
func selects(s *ops.Scope) any {
	if s == nil {
		return nil
	}
	return object{"types": listed(s.Types, func(t string) string { return t }), "version": s.Version, "projection": s.Projection}
}

// paused is null of what is not.
func paused(p *ops.Pause) any {
	if p == nil {
		return nil
	}
	return object{"since": p.Since, "operator": p.By.Operator, "reason": p.By.Reason}
}

// owner is null of what nobody runs.
func owner(id uuid.UUID) any {
	if id == uuid.Nil {
		return nil
	}
	return id.String()
}
