// Package progress stores the durable state of a consumer. The state is the checkpoint
// with its revision, the open ranges, the audit of skipped positions, the dead letters
// and a pause. The package has the SQL for this state, for one worker. It also has the
// SQL for a repair, and for the batch of another worker that holds the checkpoint.
//
// [Checkpoints.Guard] is the compare-and-set on which exactly-once processing rests.
// Every change of a consumer's progress changes the [Version] of its row. A batch
// commits only if the row still has the version from which the batch was planned.
//
// The package knows tables, versions and positions. It must not know why a position is
// skipped, what a handler does, when a batch is tried, or which caller waits. The
// frontier, the reader and the loop decide, and pass an [Advance].
package progress
