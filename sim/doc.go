// Package sim drives real workers against a real PostgreSQL, with concurrent
// writers and injected faults, and judges what came of it: nothing lost, nothing
// applied twice, nothing out of order, every skipped position audited.
//
// The actors keep ledgers of what they did, see package history. When everything
// has come to rest, package oracle compares the ledgers with the tables. One seed
// decides everything that can be decided; how the server and the scheduler
// interleave it cannot.
//
// Imports point one way: sim, jobs, events, stage, server and network, fault, history.
// A [Driver] takes the place of the workers and their faults, as package chaos does.
package sim
