// Package changes notifies the processes that share a set of tables. Changes are a worker that
// joined or left, assignments, and operations.
//
// The change itself is in other tables. Processes that poll read a counter of changes;
// processes that listen get a notification. Both are hints: poll the change itself if it may
// not be missed.
//
// The package knows the table of the counter and the names of its channels. It must never know
// the meaning of a change.
package changes
