package progress

// Statements are those on dead letters, whose plans are tested.
type Statements struct{ Load, Add, Have, Next, Remove, Keep string }

// Statements returns them.
func (c Checkpoints) Statements() Statements {
	l := c.deadLetters
	return Statements{c.load, l.add, l.have, l.next, l.remove, l.keep}
}

// RetriesAtOnce is how many rows of each kind a search for retries reads.
const RetriesAtOnce = retriesAtOnce
