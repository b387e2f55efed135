// Package pgdriver hides the differences of PostgreSQL's drivers and proxies. It classifies errors,
// and detects lost connections, the state of a transaction, and proxies that change the session
// between transactions. It treats pgx and lib/pq alike as far as possible.
//
// The package must never mention events, consumers, jobs or workers. It may import package store
// only for Querier and the bounds of times.
package pgdriver
