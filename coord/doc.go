// Package coord decides which worker runs which unit, with PostgreSQL as the
// only coordinator. It decides who tries, and how soon; that a unit's work is
// done once is not its affair, so two workers may believe for a moment that
// the same unit is theirs.
//
// The package is the worker's own; it promises no stable API.
package coord
