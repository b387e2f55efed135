// Package sim runs real workers against a real PostgreSQL, with concurrent writers and injected
// faults. The actors keep ledgers (package history). When the run is at rest, package oracle
// compares the ledgers with the tables: see docs/simulation.md.
//
// Imports point one way: sim, jobs, events, stage, server and network, fault, oracle, history. A
// [Driver] takes the place of the workers and their faults, as package chaos does.
package sim
