// Package scope says what a consumer's code selects from the log, and which of several
// builds that differ in it runs the consumer.
package scope

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Scope is what a consumer's code says of itself. Workers show it in their rows, and a
// checkpoint has that of the build which runs the consumer.
type Scope struct {
	Types   []string `json:"types,omitempty"`   // aggregate types, sorted; none: all
	Version int      `json:"version,omitempty"` // of the code, see consumer.Versioned
	Start   string   `json:"start,omitempty"`   // where it began, for people; empty: with the first event
}

// Of returns the scope of code that names types, in any order.
func Of(types []string, version int, start string) Scope {
	types = slices.Clone(types)
	slices.Sort(types)
	return Scope{Types: slices.Compact(types), Version: version, Start: start}
}

// Parse reads what [Scope.String] has written.
func Parse(text string) (s Scope, err error) {
	if err = json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("the scope %.80q is none of this library: %w", text, err)
	}
	return Of(s.Types, s.Version, s.Start), nil
}

// String is how a scope is stored.
func (s Scope) String() string {
	text, _ := json.Marshal(s) // of strings and a number it does not fail
	return string(text)
}

// Compare orders scopes: the build with the greatest scope runs the consumer. The higher
// version is greater, then the scope with more types. Scopes with equally many types are
// ordered by the names of the types, so that all workers agree.
func (s Scope) Compare(o Scope) int {
	width := func(s Scope) int {
		if len(s.Types) == 0 {
			return int(^uint(0) >> 1)
		}
		return len(s.Types)
	}
	return cmp.Or(cmp.Compare(s.Version, o.Version), cmp.Compare(width(s), width(o)), slices.Compare(s.Types, o.Types))
}

// Lacks returns the types of o that s does not select. all is true if these are all but
// its own.
func (s Scope) Lacks(o Scope) (types []string, all bool) {
	switch {
	case len(s.Types) == 0:
		return nil, false
	case len(o.Types) == 0:
		return nil, true
	}
	for _, t := range o.Types {
		if !s.Selects(t) {
			types = append(types, t)
		}
	}
	return types, false
}

// Words are a scope in words.
func (s Scope) Words() string {
	words := "all types"
	if n := len(s.Types); n > 0 {
		const named = 5
		words = strings.Join(s.Types[:min(n, named)], ", ")
		if n > named {
			words += fmt.Sprintf(" and %d more", n-named)
		}
	}
	if s.Version != 0 {
		words += fmt.Sprintf(" (version %d)", s.Version)
	}
	return words
}
