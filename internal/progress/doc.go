// Package progress stores the durable state of a consumer. The state is the checkpoint, the
// open ranges, the audit of skipped positions, the dead letters and a pause. It also has
// the SQL for a repair, and for another worker's batch that holds the checkpoint.
//
// [Checkpoints.Guard] is the compare-and-set on which exactly-once processing rests. Every
// change of a consumer's progress changes the [Version] of its row. A batch commits only if
// the row still has the version from which the batch was planned.
//
// The package knows tables, versions and positions. It must not know reasons for a skip,
// handlers, retries or waiting callers. The frontier, the reader and the loop decide, and pass
// an [Advance].
package progress
