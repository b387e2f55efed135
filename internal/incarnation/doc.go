// Package incarnation names the state of a server in which positions of a log are issued once.
// It proves that an answer comes from that state.
//
// The name changes whenever positions may be issued again:
//
//   - Crash recovery and promotion empty an UNLOGGED table, which then gets a new random
//     token. A killed backend makes the server recover without a new start time, so the start
//     time alone would not suffice.
//   - A restored cold backup contains its token, but the server has another start time. So the
//     token alone would not suffice.
//   - TRUNCATE ... RESTART IDENTITY gives the sequence and the table other files. So does a
//     harmless rewrite of either.
//
// The result of a read is valid in the incarnation of the read. A standby, an abandoned
// primary or a restored copy has another incarnation, or none.
//
// The package knows the table of the token, and the names of a log's table and sequence, if
// any. The package must not know consumers, jobs or workers.
package incarnation
