// Package pgdriver knows what PostgreSQL's drivers and the proxies between
// them and the server do: what an error means, whether a connection is still
// there, in what state its transaction is, and whether each transaction may get
// another session. It treats pgx and lib/pq alike as far as they let it.
//
// It must never know events, consumers, jobs or workers.
package pgdriver
