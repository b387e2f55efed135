// Package incarnation names the state of a server in which positions of a log
// are issued once, and proves that an answer stems from it.
//
// The name changes whenever positions may be issued again:
//
//   - Crash recovery and promotion empty an UNLOGGED table; a new random token
//     is put into it. A killed backend makes the server recover without a new
//     start time, so the start time alone would not do.
//   - A cold backup that is put back brings its token along, but the server has
//     another start time. So the token alone would not do.
//   - TRUNCATE ... RESTART IDENTITY gives the sequence and the table other
//     files. So does what rewrites either of them, and is harmless.
//
// What a read found out counts in the incarnation in which it was read. A
// standby, an abandoned primary or a restored copy has another one, or none.
//
// The package knows the table of the token, and the names of a log's table and
// sequence, both of which may be missing. It must never know consumers, jobs or
// workers.
package incarnation
