// Package progress keeps the durable side of a consumer: its checkpoint with the
// revision, the open ranges and the audit of skipped positions, the dead letters,
// a pause, and what a batch of another worker, or a repair, does to them. It has
// all of that in SQL, for one worker.
//
// [Checkpoints.Guard] is the compare-and-set on which exactly-once rests. Every
// change of a consumer's progress changes its row's [Version]. A batch commits only
// if the row still has the version that the batch was planned from.
//
// It knows tables, versions and positions. It must never know why a position is
// skipped, what a handler does, when something is tried, or who waits: the
// frontier, the reader and the loop decide, and hand it an [Advance].
package progress
