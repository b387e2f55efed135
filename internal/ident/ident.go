// Package ident validates the names that users choose, and quotes the SQL
// identifiers among them.
package ident

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
)

// maxLen is PostgreSQL's limit for an identifier (NAMEDATALEN - 1), in bytes. PostgreSQL
// silently truncates a longer identifier, so two names could collide.
const maxLen = 63

var plain = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$]*$`)

// Table is a validated table name with an optional schema.
type Table struct {
	Schema string // empty: found through the search path
	Name   string
}

// ParseTable validates s as "table" or "schema.table". As in unquoted SQL, capital letters are
// folded to small ones. what names the setting in errors.
func ParseTable(what, s string) (Table, error) {
	schema, name, qualified := strings.Cut(s, ".")
	if !qualified {
		schema, name = "", s
	}
	for _, part := range []string{schema, name} {
		if part == "" && !qualified {
			continue
		}
		if err := check(part); err != nil {
			return Table{}, fmt.Errorf("%s: %s is no table name: %w; use \"table\" or \"schema.table\"", what, errtext.Value(s), err)
		}
	}
	if name == "" {
		return Table{}, fmt.Errorf("%s: the table name is empty", what)
	}
	return Table{Schema: strings.ToLower(schema), Name: strings.ToLower(name)}, nil
}

// Check validates a single identifier, such as a channel or a column. The identifier is not
// folded. what names the setting in errors.
func Check(what, s string) error {
	if err := check(s); err != nil {
		return fmt.Errorf("%s: %s: %w", what, errtext.Value(s), err)
	}
	return nil
}

func check(part string) error {
	switch {
	case part == "":
		return fmt.Errorf("an identifier is empty")
	case len(part) > maxLen:
		return fmt.Errorf("an identifier has %d bytes, PostgreSQL takes at most %d", len(part), maxLen)
	case !plain.MatchString(part):
		return fmt.Errorf("identifiers consist of letters, digits, '_' and '$' and begin with a letter or '_'")
	}
	return nil
}

// Derive returns a table in t's schema whose name is t's name with a suffix. what names t's
// setting in errors.
func (t Table) Derive(what, suffix string) (Table, error) {
	name := t.Name + suffix
	if len(name) > maxLen {
		return Table{}, fmt.Errorf("%s: %q is too long: with the suffix %q it has %d bytes, PostgreSQL takes at most %d", what, t.Name, suffix, len(name), maxLen)
	}
	return Table{Schema: t.Schema, Name: name}, nil
}

// Sibling returns a table in t's schema, and replaces the suffix old of t's name by suffix:
// consumer_dead_letters for consumer_checkpoints. If t's name does not end in old, suffix is
// appended.
func (t Table) Sibling(what, old, suffix string) (Table, error) {
	return Table{Schema: t.Schema, Name: strings.TrimSuffix(t.Name, old)}.Derive(what, suffix)
}

// SQL returns the quoted name for use in a statement.
func (t Table) SQL() string {
	if t.Schema == "" {
		return Quote(t.Name)
	}
	return Quote(t.Schema) + "." + Quote(t.Name)
}

// String returns the name without quotes.
func (t Table) String() string {
	if t.Schema == "" {
		return t.Name
	}
	return t.Schema + "." + t.Name
}

// Literal quotes a text as an SQL literal, also if standard_conforming_strings is off, like
// PostgreSQL's quote_literal. Use Literal only for statements that take no parameters.
func Literal(s string) string {
	quoted := `'` + strings.ReplaceAll(s, `'`, `''`) + `'`
	if strings.Contains(s, `\`) {
		quoted = ` E` + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// Quote quotes one identifier.
func Quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
