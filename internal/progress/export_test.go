package progress

// Statements are the statements on dead letters whose plans are tested.
type Statements struct{ Load, Add, Have, Next, Remove, RemoveFirst, Keep string }

// Statements returns the statements on dead letters.
func (c Checkpoints) Statements() Statements {
	l := c.deadLetters
	return Statements{c.load, l.add, l.have, l.next, l.remove, l.removeFirst, l.keep}
}

// RetriesAtOnce is the maximum number of rows of each kind that a search for retries reads.
const RetriesAtOnce = retriesAtOnce

// RescaleStatement returns a statement of a [Rescale].
func (c Checkpoints) RescaleStatement(name string) string {
	s := c.rescale
	return map[string]string{"own": s.own, "unit": s.unit, "letters": s.deadLetters, "split": s.split, "inert": s.inert,
		"remove": s.remove, "parts": s.parts, "open": s.open, "merge": s.merge}[name]
}
