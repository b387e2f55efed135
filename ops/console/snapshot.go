package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
)

// snapshot is the state of the log, the consumers and the workers. All live pages are drawn from
// one snapshot. It is immutable.
type snapshot struct {
	Log       ops.Log
	Fault     string // why the log cannot be read; empty: it can
	Consumers []ops.Consumer
	Doubts    []ops.Gap     // open ranges of the first consumers that have some
	Blockers  []ops.Blocker // without the texts of their queries
	Workers   []ops.Worker  // in order of where they run
	Stopped   []ops.StoppedWorker
	Wrong     []alarms.Alarm

	told    []told            // by the workers, in the same order
	names   map[[16]byte]int  // where a worker is among them
	errors  map[string]string // of consumers and units, as living workers report them
	history *history
}

// look reads a snapshot, without the doubts. Its parts come one after the other.
func (r *eventReads) look(ctx context.Context) (s *snapshot, err error) {
	s = &snapshot{history: &r.history}
	// Read the workers first: the row of a worker that leaves in between is then known.
	if s.Workers, err = r.consumers.Workers(ctx); err != nil {
		return nil, err
	}
	if s.Stopped, err = stoppedOf(r.consumers.StoppedWorkers(ctx)); err != nil {
		return nil, err
	}
	if s.Consumers, err = r.consumers.Consumers(ctx); err != nil {
		return nil, err
	}
	s.listen()
	var fault *frontier.SetupError
	switch s.Log, err = r.consumers.Log(ctx); {
	case errors.As(err, &fault): // the reports of the workers are still useful
		s.Fault = fault.Error()
	case err != nil:
		return nil, err
	}
	if s.Log.Open > 0 {
		if s.Blockers, err = r.consumers.Blockers(ctx, false); err != nil {
			return nil, err
		}
	}
	// A position that a consumer has passed was safe, however old the workers' reports are.
	for _, one := range s.Consumers {
		s.Log.Safe = max(s.Log.Safe, min(one.Position, s.Log.Head))
	}
	s.Wrong, err = alarms.Find(ctx, r.db, r.names, s.Consumers, s.Workers, placeOf)
	return s, err
}

// lookCloser reads a snapshot with the doubts.
func (r *eventReads) lookCloser(ctx context.Context) (*snapshot, error) {
	s, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	doubtful := 0
	for _, one := range s.Consumers {
		if one.OpenRanges == 0 || doubtful == doubtfulConsumers {
			continue
		}
		doubtful++
		gaps, err := r.consumers.Gaps(ctx, one.Name, ops.GapFilter{OnlyOpen: true}, doubtsOfEach)
		if err != nil {
			return nil, err
		}
		s.Doubts = append(s.Doubts, gaps...)
	}
	return s, nil
}

// told is the status that a worker has reported.
type told struct {
	Unowned   []string
	Consumers []struct{ Name, LastError string }
}

// listen reads the status that the workers reported with their last heartbeats. Workers of other
// libraries report another status, or none. The rows of the workers keep their order, whichever
// heartbeat is the latest.
func (s *snapshot) listen() {
	slices.SortFunc(s.Workers, func(a, b ops.Worker) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), slices.Compare(a.ID[:], b.ID[:]))
	})
	s.told, s.names, s.errors = make([]told, len(s.Workers)), map[[16]byte]int{}, map[string]string{}
	for i, w := range s.Workers {
		s.names[w.ID] = i
		_ = json.Unmarshal(w.Status, &s.told[i])
		if s.Silent(w.ID) {
			continue // the status may be outdated
		}
		for _, c := range s.told[i].Consumers {
			if c.LastError != "" {
				s.errors[c.Name] = c.LastError
			}
		}
	}
}

// Told is the status that a worker has reported.
func (s *snapshot) Told(w ops.Worker) told { return s.told[s.names[w.ID]] }

const mostErrors = 3 // the errors of consumers that a worker's row shows

// Troubles are the errors of a worker, one a line, and the errors of its first consumers.
func (s *snapshot) Troubles(w ops.Worker) (all []string) {
	for _, c := range alarms.WorkerErrors(w.Status) {
		all = append(all, c.Part+": "+c.Text)
	}
	shared := alarms.Share(alarms.UnitErrors(w.Status))
	for _, t := range shared[:min(len(shared), mostErrors)] {
		all = append(all, t.Name()+": "+t.Message())
	}
	if n := len(shared) - mostErrors; n > 0 {
		all = append(all, count(n, "other consumer")+" with an error")
	}
	return all
}

// LastError is the last error of a consumer or a unit, as its worker has reported it.
func (s *snapshot) LastError(name string) string { return s.errors[name] }

// WorkerName returns the host and the process of a worker.
func (s *snapshot) WorkerName(id [16]byte) string {
	i, ok := s.names[id]
	switch {
	case !ok:
		return shortID(id) + ", gone"
	case s.Silent(id):
		return placeOf(s.Workers[i]) + " (silent)"
	}
	return placeOf(s.Workers[i])
}

// Silent reports whether a worker's heartbeat is old, or gone.
func (s *snapshot) Silent(id [16]byte) bool {
	i, ok := s.names[id]
	return !ok || alarms.IsSilent(s.Workers[i])
}

// living are the workers whose heartbeat is fresh.
func (s *snapshot) living() (all []ops.Worker) {
	for _, w := range s.Workers {
		if !s.Silent(w.ID) {
			all = append(all, w)
		}
	}
	return all
}

// consumer returns a consumer of the snapshot.
func (s *snapshot) consumer(name string) (ops.Consumer, bool) {
	i := slices.IndexFunc(s.Consumers, func(c ops.Consumer) bool { return c.Name == name })
	if i < 0 {
		return ops.Consumer{}, false
	}
	return s.Consumers[i], true
}

// Summary is the text that a screen reader announces when it changes.
func (s *snapshot) Summary() string {
	states, letters := map[string]int{}, int64(0)
	for _, c := range s.Consumers {
		letters += c.DeadLetters
		states[s.State(c).Word]++
	}
	living := len(s.living())
	parts := []string{count(len(s.Consumers), "consumer"), count(living, "worker")}
	if n := len(s.Workers) - living; n > 0 {
		parts = append(parts, count(n, "silent worker"))
	}
	for _, p := range []struct{ word, text string }{{isPaused, " paused"}, {isLate, " late"}, {isUnowned, " that nobody runs"}, {isSilent, " whose worker is silent"}} {
		if n := states[p.word]; n > 0 {
			parts = append(parts, thousands(n)+p.text)
		}
	}
	if letters > 0 {
		parts = append(parts, count(letters, "dead letter"))
	}
	if s.Fault != "" {
		parts = append(parts, "the log cannot be read")
	}
	if len(s.Wrong) > 0 {
		parts = append(parts, count(len(s.Wrong), "complaint"))
	}
	if slices.ContainsFunc(s.Blockers, s.Old) {
		parts = append(parts, "an old transaction may hold the log back")
	}
	return strings.Join(parts, ", ")
}

// state is the state of a consumer. Its text begins with a sign, so the meaning does not depend on
// the colour.
type state struct{ Sign, Word, Class string }

// State returns the state of a consumer. For a split consumer, one unit without a worker, or with a
// silent worker, determines the state, unless the unit is paused.
func (s *snapshot) State(c ops.Consumer) state {
	units := c.Units
	if len(units) == 0 {
		units = []ops.Unit{{HeadLag: c.HeadLag, Paused: c.Paused, Worker: c.Worker}}
	}
	nobody, silent := false, false
	for _, u := range units {
		switch {
		case u.Paused != nil:
		case !known(u.Worker):
			nobody = true
		default:
			silent = silent || s.Silent(u.Worker)
		}
	}
	switch {
	case c.RenamedTo != "":
		return state{"✓", isRenamed, "good"}
	case c.Paused != nil:
		return state{"❚❚", isPaused, "warn"}
	case nobody:
		return state{"✕", isUnowned, "bad"}
	case silent:
		return state{"✕", isSilent, "bad"}
	case c.OldestAge > lateAfter:
		return state{"▲", isLate, "bad"}
	case c.HeadLag > 0 && (c.OldestAge > behindAfter || c.OldestAge == 0): // 0: the event's time lies ahead
		return state{"→", isBehind, "good"}
	}
	return state{"✓", isUpToDate, "good"}
}

// Old reports whether a transaction is so old that an operator should check it.
func (s *snapshot) Old(b ops.Blocker) bool { return b.Age > oldTransaction }

// Spark is how far a consumer was behind in the last minutes.
func (s *snapshot) Spark(c ops.Consumer) spark { return s.history.spark(c.Name, time.Now()) }

// choice is a page of the consumers that a viewer searches for.
type choice struct {
	Address     string         `json:"-"` // of the first page
	Find, State string         // part of the name, and the state; empty: any
	States      []string       `json:"-"` // to choose from
	Matching    int            // consumers, on all pages
	Consumers   []ops.Consumer // of this page, in order of name
	Next        string         `json:",omitempty"` // the key of the next page; empty: this is the last
}

// Search is the content of the search form.
func (l choice) Search() choice { return l }

// choose finds the consumers that an address asks for.
func (s *snapshot) choose(address string, q url.Values) choice {
	l := choice{Address: address, Find: q.Get("find"), State: q.Get("state"), States: []string{isPaused, isUnowned, isSilent, isLate, isBehind, isUpToDate, isRenamed, hasLetters}, Consumers: []ops.Consumer{}}
	for _, c := range s.Consumers {
		has := strings.Contains(strings.ToLower(c.Name), strings.ToLower(l.Find))
		if !has || l.State != "" && l.State != s.State(c).Word && !(l.State == hasLetters && c.DeadLetters > 0) {
			continue
		}
		switch l.Matching++; {
		case c.Name <= q.Get("after"):
		case len(l.Consumers) < consumersPerPage:
			l.Consumers = append(l.Consumers, c)
		default:
			l.Next = l.Consumers[consumersPerPage-1].Name
		}
	}
	return l
}

const (
	doubtfulConsumers = 20 // whose open ranges are drawn
	doubtsOfEach      = 50
)

func placeOf(w ops.Worker) string { return fmt.Sprintf("%s:%d", w.Host, w.PID) }

const (
	behindAfter    = 5 * time.Second  // a consumer that runs well has handled an event long before
	lateAfter      = 30 * time.Second // events wait for so long where something is wrong, or much to do
	oldTransaction = 5 * time.Second
)

// The states of a consumer.
const (
	isPaused   = "paused"
	isUnowned  = "nobody runs it"
	isSilent   = "silent" // its worker's heartbeat is old, or gone
	isLate     = "late"
	isBehind   = "behind"
	isUpToDate = "up to date"
	isRenamed  = "renamed"           // what is left under an old name
	hasLetters = "with dead letters" // shown beside one of the other states
)

const consumersPerPage = 100

// stoppedOf returns no stopped workers if the role may not read their table. A role may have rights
// from before the table existed.
func stoppedOf(all []ops.StoppedWorker, err error) ([]ops.StoppedWorker, error) {
	if pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege {
		return nil, nil
	}
	return all, err
}
