// Package sim drives real workers against a real PostgreSQL, with concurrent
// writers and injected faults, and judges what came of it: nothing lost, nothing
// applied twice, nothing out of order, every skipped position audited.
//
// The actors keep books of what they did, see package history. When everything
// has come to rest, package oracle compares the books with the tables. One seed
// decides everything that can be decided; how the server and the scheduler
// interleave it cannot.
//
// A fault is a row in a fault_*.go file: its name, what it does, how it is
// counted, how it is injected, and what it leads to. A [Driver] takes the place
// of the workers and their faults, as package chaos does with processes.
//
// A run of jobs ([Config.Jobs]) has enqueuers, workers of package jobs and operators
// instead. Its files begin with jobs_, its faults are rows in jobs_fault_*.go,
// jobs_operator.go and jobs_enqueuer.go. It shares the server, the network, the
// failpoints and the decks with the others.
package sim

import ()
