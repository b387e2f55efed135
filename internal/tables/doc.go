// Package tables has the names of the tables of a worker and of its event log. Users configure
// some names. The others are derived from the name of the checkpoints.
//
// The package knows only names. Package migrations knows the columns.
package tables
