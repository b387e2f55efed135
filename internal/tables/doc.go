// Package tables has the names of all tables. [Tables] and [Jobs] state each table once. Package
// migrations knows the columns.
package tables
