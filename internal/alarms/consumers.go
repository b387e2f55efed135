package alarms

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Trouble is the last error of a consumer, or of a unit of it, as a worker told it.
type Trouble struct {
	Unit     string
	Consumer string
	Text     string // one line
	State    string // the SQLSTATE that PostgreSQL answered with, empty if there was none
	Stuck    bool   // at an event, which ops.SkipEvent takes
}

// Troubles are those in a worker's Status.
func Troubles(status json.RawMessage) (all []Trouble) {
	var said struct {
		Consumers []struct {
			Name, LastError, LastErrorState string
			Stuck                           int64
		}
	}
	_ = json.Unmarshal(status, &said) // of another library it may be anything
	for _, c := range said.Consumers {
		if c.LastError != "" {
			all = append(all, Trouble{c.Name, partition.Consumer(c.Name), errtext.Line(c.LastError), c.LastErrorState, c.Stuck > 0})
		}
	}
	return all
}

// Shared is an error that units of a consumer have in common.
type Shared struct {
	Trouble          // of the first
	Units   []string // all, in order of name
}

// Share gathers the errors that units of a consumer fail with for the same reason, in order of
// the units.
func Share(all []Trouble) (shared []Shared) {
	all = slices.SortedStableFunc(slices.Values(all), func(a, b Trouble) int { return strings.Compare(a.Unit, b.Unit) })
	type key struct{ consumer, reason string }
	at := map[key]int{}
	for _, t := range all {
		k := key{t.Consumer, t.reason()}
		i, known := at[k]
		if !known {
			i = len(shared)
			at[k], shared = i, append(shared, Shared{Trouble: t})
		}
		if units := shared[i].Units; !slices.Contains(units, t.Unit) {
			shared[i].Units = append(units, t.Unit)
		}
	}
	return shared
}

var (
	// failure is what a worker puts before the error that a handler has returned.
	failure  = regexp.MustCompile(`^worker: consumer "(?:[^"\\]|\\.)*" failed(?: at position \d+ \(event [^ ]+, type .*?\))?, \d+ in a row: `)
	position = regexp.MustCompile(`position \d+`)
)

// reason is the error without what tells units apart that fail with it.
func (t Trouble) reason() string {
	text := failure.ReplaceAllString(t.Text, "")
	return position.ReplaceAllString(strings.ReplaceAll(text, t.Unit, t.Consumer), "position")
}

// Name is the unit's, or the consumer's of several units.
func (s Shared) Name() string {
	if len(s.Units) == 1 {
		return s.Unit
	}
	return s.Consumer
}

// Says is the error. Of several units, it names them, and leaves out the event of the first.
func (s Shared) Says() string {
	const most = 20 // units that are named
	n := len(s.Units)
	if n == 1 {
		return s.Text
	}
	var names []string
	for _, unit := range s.Units[:min(n, most)] {
		names = append(names, strings.TrimPrefix(unit, s.Consumer+"#"))
	}
	if n > most {
		names = append(names, fmt.Sprintf("%d more", n-most))
	}
	return fmt.Sprintf("%d units (%s): %s", n, strings.Join(names, ", "), failure.ReplaceAllString(s.Text, ""))
}

// overdue is in the text of worker.ErrHandlerOverdue.
const overdue = "a handler ignores the end of its context"

// Remedy says what to do about it. To skip an event helps only if the event is to blame.
func (s Shared) Remedy() string {
	switch {
	case s.State == pgdriver.InsufficientPrivilege:
		return "GRANT what the error names to the workers' role, or mend the policy that refuses it; the event is not to blame, and a skip would lose it"
	case pgdriver.IsOfStatement(s.State):
		return "mend the statement, or make what it names in the database; the event is not to blame, and a skip would lose it"
	case strings.Contains(s.Text, overdue):
		return "mend the handler, and start the process again: the consumer waits for it until then"
	case s.Stuck:
		return "do what the error says; if it is the handler's, mend that, or pgfrontier skip NAME POSITION"
	}
	return "do what the error says"
}
