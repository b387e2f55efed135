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

// UnitError is the last error of a consumer or a unit, as a worker reported it.
type UnitError struct {
	Unit     string
	Consumer string
	Text     string // one line
	State    string // the SQLSTATE of PostgreSQL's answer; empty: none
	Stuck    bool   // at an event that ops.SkipEvent accepts
}

// UnitErrors returns the errors of consumers in a worker's Status.
func UnitErrors(status json.RawMessage) (all []UnitError) {
	var reported struct {
		Consumers []struct {
			Name, LastError, LastErrorState string
			Stuck                           int64
		}
	}
	_ = json.Unmarshal(status, &reported) // another library may have stored any JSON
	for _, c := range reported.Consumers {
		if c.LastError != "" {
			all = append(all, UnitError{c.Name, partition.Consumer(c.Name), errtext.Line(c.LastError), c.LastErrorState, c.Stuck > 0})
		}
	}
	return all
}

// Shared is an error that several units of a consumer share.
type Shared struct {
	UnitError          // of the first unit
	Units     []string // all units, in order of name
}

// Share groups errors of units of a consumer that have the same reason, in order of the units.
func Share(all []UnitError) (shared []Shared) {
	all = slices.SortedStableFunc(slices.Values(all), func(a, b UnitError) int { return strings.Compare(a.Unit, b.Unit) })
	type key struct{ consumer, reason string }
	at := map[key]int{}
	for _, t := range all {
		k := key{t.Consumer, t.reason()}
		i, known := at[k]
		if !known {
			i = len(shared)
			at[k], shared = i, append(shared, Shared{UnitError: t})
		}
		if units := shared[i].Units; !slices.Contains(units, t.Unit) {
			shared[i].Units = append(units, t.Unit)
		}
	}
	return shared
}

var (
	// failure matches the prefix that a worker adds to a handler's error.
	failure  = regexp.MustCompile(`^worker: consumer "(?:[^"\\]|\\.)*" failed(?: at position \d+ \(event [^ ]+, type .*?\))?, \d+ in a row: `)
	position = regexp.MustCompile(`position \d+`)
)

// reason returns the error without the parts that differ between units.
func (t UnitError) reason() string {
	text := failure.ReplaceAllString(t.Text, "")
	return position.ReplaceAllString(strings.ReplaceAll(text, t.Unit, t.Consumer), "position")
}

// Name returns the unit, or the consumer if there are several units.
func (s Shared) Name() string {
	if len(s.Units) == 1 {
		return s.Unit
	}
	return s.Consumer
}

// Message returns the error. For several units it names the units, and omits the event of the first.
func (s Shared) Message() string {
	const most = 20 // maximum number of units to name
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

// overdue is a part of worker.ErrHandlerOverdue's text.
const overdue = "a handler ignores the end of its context"

// Remedy returns a remedy. It suggests a skip only if the event may be the cause.
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
