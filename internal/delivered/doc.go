// Package delivered records of which events a consumer has had the effects, so that a reset
// does not repeat them.
//
// At or below its border, a unit has had the effects of all events, except the exceptions.
// Above the border, the unit has had the effects of the events up to its checkpoint that are
// not pending. A position in doubt and a dead letter are pending. So a consumer that advances
// writes nothing here. An operation that moves the checkpoint first calls [Borders.Pass],
// which raises the border to the checkpoint. From then on, each batch removes the events that
// it handles from the exceptions, in its own transaction.
//
// Two invariants hold in each committed state of a unit, for every event of the unit.
//
//   - At or below the border, the unit has had the event's effect, or the event's position is
//     an exception.
//   - Above the border, the unit has had the event's effect if, and only if, the position is
//     at or below the checkpoint and not pending.
//
// An exception at or below the checkpoint is pending, or was skipped by an operator. A late
// event, a retry of a dead letter, or a reset to a lower position handles it.
//
// The parts of a consumer may have different borders. A split copies the unit's borders to its
// parts. A merge keeps each part's border for the part's slots.
package delivered
