// Package derived names the tables that the configured ones bring along.
package derived

import (
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
)

// Tables stand beside the table of checkpoints and are named after it.
type Tables struct {
	Token, Settled, Changes, Version ident.Table
	DeadLetters, Operations          ident.Table
}

// From derives the tables from that of the checkpoints. setting names the
// latter's setting in errors: a name can be too long to be lengthened.
func From(setting string, checkpoints ident.Table) (t Tables, err error) {
	var all []error
	sibling := func(replaced, suffix string) ident.Table {
		table, err := checkpoints.Sibling(setting, replaced, suffix)
		all = append(all, err)
		return table
	}
	t = Tables{
		Token:       sibling("", "_token"),
		Settled:     sibling("", "_settled"),
		Changes:     sibling("", "_changes"),
		Version:     sibling("", "_schema"),
		DeadLetters: sibling("_checkpoints", "_dead_letters"),
		Operations:  sibling("_checkpoints", "_operations"),
	}
	return t, errtext.Join(all...)
}
