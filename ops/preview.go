package ops

// Preview is an exact dry run. It calls change with an Operator that rolls each change back. It
// returns the operations that would be recorded, without IDs, in order. It returns the error
// that the change would return. Each of several changes starts from the current state, not from
// the result of the change before. So preview one change at a time. The consumer may move
// between Preview and the change: [Operator.IfRevision] then refuses the change.
//
// Preview takes the locks of the change. It waits for the batch that a worker runs, and the
// consumer waits for Preview.
func (o *Operator) Preview(change func(o *Operator) error) ([]Operation, error) {
	p := *o
	p.dry = &dryRun{}
	err := change(&p)
	return orZero(p.dry.recorded, err)
}

// Confirmed runs a change, and commits it if accept returns nil for the recorded operations.
// accept compares these with the result of [Operator.Preview], for example. An error of accept
// rolls the change back; Confirmed returns an error that wraps it. The consumer cannot move in
// between. If there are several changes, accept is called for each, in the transaction of that
// change.
//
// [Operator.IfRevision] does not suit a running consumer, since every batch changes its
// revision. Confirmed can discard exactly the dead letters that were shown.
func (o *Operator) Confirmed(change func(o *Operator) error, accept func(recorded []Operation) error) error {
	p := *o
	p.dry = &dryRun{accept: accept}
	return change(&p)
}

// IfRevision returns an Operator that refuses a change with a [MovedError] unless the consumer
// has this revision. If the change names a unit, its revision counts. [Consumer] and [Unit]
// have the revision. Every batch of a worker changes the revision, so IfRevision suits
// consumers that are paused or stuck. It suits one change, which changes the revision, too.
func (o *Operator) IfRevision(revision int64) *Operator {
	p := *o
	p.revision = &revision
	return &p
}
