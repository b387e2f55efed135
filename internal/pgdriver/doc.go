// Package pgdriver knows what PostgreSQL's drivers and the proxies between
// them and the server do: what an error means, whether a connection is still
// there, and in what state its transaction is. It treats pgx and lib/pq alike
// as far as they let it.
//
// It knows nothing of events, consumers or workers.
package pgdriver
