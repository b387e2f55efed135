// Package tables has the names of all tables. [Tables] and [Jobs] state each table once, with the
// name from which its own derives. A name that users configure also is a field of store.Names.
//
// The package knows only names. Package migrations knows the columns.
package tables
