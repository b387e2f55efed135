// Package effects knows of which events a consumer has had the effects, so that a
// reset does not repeat them.
//
// Up to a border, a consumer has had the effects of all events but some. Above it, of
// those below its checkpoint that are not pending: neither in doubt nor dead letters.
// So nothing is written while a consumer goes ahead. Who moves it against its will
// first calls [Borders.Pass], which raises the border to the checkpoint. From then on
// each batch takes what it has handled out of the exceptions, in its own transaction.
//
// Two invariants hold in each committed state of a unit, for every event of its own:
//
//   - At or below the border, the unit has had the event's effect, or the event's
//     position is an exception.
//   - Above the border, the unit has had the event's effect if, and only if, the
//     position is at or below the checkpoint and not pending.
//
// An exception below the checkpoint is pending, or was crossed by an operator: it is
// handled when a late event appears, a dead letter is tried again, or a reset goes back
// before it.
//
// The parts of a consumer may have different borders. A part inherits those of the unit
// that was split. A merge keeps each part's border for the slots that it had.
package effects
