// Package changes announces news to the processes that share a set of tables: a
// worker that joined or left, assignments, an operation.
//
// The news itself is wherever it was written. A counter says that there is some,
// for those who poll; a notification, for those who listen. Both are hints. Poll
// the news itself where nothing may be missed.
//
// The package knows the table of the counter and the names of its channels. It
// must never know what the news is about.
package changes
