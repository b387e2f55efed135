package pgdriver

import "fmt"

// Parameters collects the parameters of a query whose text depends on a filter.
type Parameters struct{ Values []any }

// Add adds a parameter, and returns its place in the text, such as "$2::bigint".
func (p *Parameters) Add(kind string, value any) (place string) {
	p.Values = append(p.Values, value)
	return fmt.Sprintf("$%d::%s", len(p.Values), kind)
}

// And returns " AND condition", whose %s is the place of value. It returns "" for the zero value,
// which selects everything. So the query has conditions only for the fields that a filter sets, and
// the planner can choose the right index.
func And[T comparable](p *Parameters, condition, kind string, value T) string {
	var all T
	if value == all {
		return ""
	}
	return fmt.Sprintf(" AND "+condition, p.Add(kind, value))
}
