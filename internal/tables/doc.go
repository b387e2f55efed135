// Package tables names the tables of a worker and of its event log: those that
// users name, and those that stand beside the checkpoints and are named after
// them.
//
// It knows names only. What the tables contain, package migrations knows.
package tables
