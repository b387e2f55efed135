// Package scope defines what a consumer's code selects from the log. It orders the scopes of
// different builds: the build with the greatest scope runs the consumer.
package scope

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Scope is the selection that a consumer's code declares. Each worker's row has the scopes of
// its code. A checkpoint has the scope of the build that runs the consumer.
type Scope struct {
	Types   []string `json:"types,omitempty"`   // aggregate types, sorted; empty: all types
	Version int      `json:"version,omitempty"` // of the code, see consumer.Versioned
	Start   string   `json:"start,omitempty"`   // where the consumer began, for display; empty: at the first event

	Projection string `json:"projection,omitempty"` // see consumer.Projected; empty: none
}

// Of returns the scope of code that selects types, in any order.
func Of(types []string, version int, start, projection string) Scope {
	types = slices.Clone(types)
	slices.Sort(types)
	return Scope{Types: slices.Compact(types), Version: version, Start: start, Projection: projection}
}

// Parse parses the result of [Scope.String].
func Parse(text string) (s Scope, err error) {
	if err = json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("the scope %.80q was not written by this library: %w", text, err)
	}
	return Of(s.Types, s.Version, s.Start, s.Projection), nil
}

// String returns the stored form of a scope.
func (s Scope) String() string {
	text, _ := json.Marshal(s) // strings and a number always marshal
	return string(text)
}

// Compare orders scopes. The scope with the higher version is greater, then the scope with
// more types. Scopes with equally many types are ordered by the names of the types, so that
// all workers agree. Otherwise equal scopes are ordered by projection, so that one is recorded.
func (s Scope) Compare(o Scope) int {
	width := func(s Scope) int {
		if len(s.Types) == 0 {
			return int(^uint(0) >> 1)
		}
		return len(s.Types)
	}
	return cmp.Or(cmp.Compare(s.Version, o.Version), cmp.Compare(width(s), width(o)), slices.Compare(s.Types, o.Types), cmp.Compare(s.Projection, o.Projection))
}

// Lacks returns the types of o that s does not select. all is true if o selects all types and
// s does not.
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

// Words returns a description of a scope.
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
	if s.Projection != "" {
		words += ", as a version of projection " + s.Projection
	}
	return words
}
