package frontier

import (
	"slices"

	"github.com/pgfrontier/worker/store"
)

// pageRead is a page that a consumer read, and its decisions.
type pageRead struct {
	value    *Value
	from     int64
	open     []store.Range
	rows     []event // to be applied, in order
	crossing Crossing
}

// consume runs a consumer on a worker: the real decisions in simulated transactions.
func (s *sim) consume(a *actor, f *simFrontier, c int) {
	for {
		a.yield()
		if s.disk.progress[c].owner != f.worker {
			continue
		}
		a.session(func(step func()) { s.batches(f, c, step) })
	}
}

// batches loads a consumer's progress and runs batches until another worker overtakes it or no
// work is left.
func (s *sim) batches(f *simFrontier, c int, step func()) {
	p := s.disk.progress[c]
	at, revision, open := p.checkpoint, p.revision, slices.Clone(p.open)
	step()
	var next *pageRead // read while the batch before ran
	for range 4 {
		l := next
		if l == nil {
			l = s.readPage(f, c, at, open, step)
		}
		if l == nil {
			return
		}
		next = nil
		prefetch := func() {
			if s.choose(2) == 0 {
				next = s.readPage(f, c, l.crossing.To, l.remaining(), step)
			}
		}
		if !s.batch(f, c, l, revision, prefetch, step) {
			return
		}
		at, revision, open = l.crossing.To, revision+1, l.remaining()
		step()
	}
}

// readPage takes the Value, reads the rows and decides. It returns nil if there is no work.
func (s *sim) readPage(f *simFrontier, c int, checkpoint int64, open []store.Range, step func()) *pageRead {
	l := &pageRead{value: f.value, from: checkpoint, open: open}
	var seen []event
	full := false
	if rows, more, ok := s.shared(l.value, checkpoint, open); ok && s.mutant != rowsBeforeValue {
		seen, full = rows, more
	} else if s.mutant == rowsBeforeValue {
		seen, full = s.rowsOf(checkpoint, 1<<62, open)
		step()
		l.value = f.value
		if n := len(seen); n > 0 && seen[n-1].position > l.value.Safe {
			full = false
		}
		seen = slices.DeleteFunc(seen, func(e event) bool { return e.position > max(checkpoint, l.value.Safe) })
	} else {
		step()
		seen, full = s.rowsOf(checkpoint, l.value.Safe, open)
	}
	if l.value.Token == "" {
		return nil
	}
	through := max(checkpoint, l.value.Safe)
	if full {
		through = seen[len(seen)-1].position
	}
	step()
	if s.mutant == doubtsAfterRows {
		v := *l.value
		v.Doubts = f.value.Doubts
		l.value = &v
	}
	s.decide(l, seen, through)
	cr := l.crossing
	if cr.To >= l.value.Safe && len(open) == 0 {
		f.followed = true
	}
	if cr.To == checkpoint && len(cr.Closed) == 0 && !(s.mutant == fallsBack && l.value.Safe < checkpoint) {
		return nil
	}
	return l
}

// rowsOf is the statement that reads a page.
func (s *sim) rowsOf(checkpoint, safe int64, open []store.Range) (rows []event, full bool) {
	for position, e := range s.disk.events {
		if position > checkpoint && position <= safe || hold(open, position) {
			rows = append(rows, e)
		}
	}
	slices.SortFunc(rows, func(a, b event) int { return int(a.position - b.position) })
	if len(rows) >= s.rows {
		return rows[:s.rows], true
	}
	return rows, false
}

func hold(spans []store.Range, position int64) bool {
	return slices.ContainsFunc(spans, func(s store.Range) bool { return s.Holds(position) })
}

// decide calls Cross.
func (s *sim) decide(l *pageRead, seen []event, through int64) {
	p := Page{Checkpoint: l.from, Through: through, Open: l.open}
	last := l.from
	for _, e := range seen {
		if e.position <= l.from {
			p.Found = append(p.Found, e.position)
			continue
		}
		if e.position > last+1 {
			p.Missing = append(p.Missing, store.Range{First: last + 1, Last: e.position - 1})
		}
		last = e.position
	}
	if last < through {
		p.Missing = append(p.Missing, store.Range{First: last + 1, Last: through})
	}
	l.rows = seen
	v := *l.value
	if s.mutant == closesAboveSafe {
		v.Safe = max(v.Safe, l.from)
	}
	l.crossing = v.Cross(p)
	switch s.mutant {
	case recordsVisible:
		l.crossing.Opened = v.InDoubt(l.from, l.crossing.To)
	case fallsBack:
		if v.Safe < l.from && len(l.rows) == 0 {
			l.crossing.To = v.Safe
		}
	}
}

// remaining returns the open ranges after the batch.
func (l *pageRead) remaining() []store.Range {
	open := slices.Clone(l.open)
	for _, closed := range slices.Backward(l.crossing.Closed) {
		open = slices.Replace(open, closed.Index, closed.Index+1, closed.Remains...)
	}
	return append(open, l.crossing.Opened...)
}

// batch runs one transaction: guard, handlers, commit. It reports whether the consumer may
// continue with the progress in memory.
func (s *sim) batch(f *simFrontier, c int, l *pageRead, revision int, during, step func()) bool {
	p := s.disk.progress[c]
	// The guard's statement reads assignment and token in its snapshot, and the checkpoint
	// when it has the row's lock.
	allowed := p.owner == f.worker && (l.value.Token == s.token || s.mutant == guardWithoutToken)
	for s.rowLocks[c] {
		step()
	}
	same := p.revision == revision
	if s.mutant == guardWithoutRevision {
		same = p.checkpoint == l.from
	}
	if !allowed || !same || p.checkpoint > l.crossing.To && s.mutant != fallsBack {
		s.seen["overtaken"]++
		return false
	}
	s.rowLocks[c] = true
	step()
	during()
	step()
	s.rowLocks[c] = false
	if s.chaos && s.choose(12) == 0 {
		s.seen["rolled back"]++
		return false
	}
	s.apply(c, l)
	s.log()
	return !s.chaos || s.choose(12) != 0 // an unknown outcome: load again
}

// apply commits a batch.
func (s *sim) apply(c int, l *pageRead) {
	p := s.disk.progress[c]
	s.trace("consumer %d: batch (%d, %d] open %v: %+v", c, l.from, l.crossing.To, l.open, l.crossing)
	for _, e := range l.rows {
		s.deliver(c, e, l.from)
	}
	passed := int64(0)
	for position := l.from + 1; position <= l.crossing.To; position++ {
		if !slices.ContainsFunc(l.rows, func(e event) bool { return e.position == position }) && !hold(l.crossing.Opened, position) {
			p.audit[position] = 'v'
			passed++
		}
	}
	if passed != l.crossing.Void.Count {
		s.violate("AUDIT says %+v, but %d positions were passed as void", l.crossing.Void, passed)
	}
	s.mark(p, l.crossing.Opened, 'o')
	for _, closed := range l.crossing.Closed {
		s.mark(p, closed.Void, 'v')
		s.mark(p, closed.Late, 'l')
	}
	p.open = l.remaining()
	p.checkpoint = l.crossing.To
	p.revision++
	s.checkLost(c)
}

// checkLost checks for events that the consumer will never apply.
func (s *sim) checkLost(c int) {
	p := s.disk.progress[c]
	for t, e := range s.pending() {
		if e.position <= p.checkpoint && p.audit[e.position] != 'o' {
			s.violate("LOST consumer %d passed position %d of %s", c, e.position, t.id)
		}
	}
	for position, e := range s.disk.events {
		if position <= p.checkpoint && p.audit[position] != 'o' && !slices.ContainsFunc(p.ledger, func(x event) bool { return x.uid == e.uid }) {
			s.violate("LOST consumer %d passed position %d, which is visible", c, position)
		}
	}
}

func (s *sim) mark(p *progress, spans []store.Range, state byte) {
	for _, span := range spans {
		for position := span.First; position <= span.Last; position++ {
			p.audit[position] = state
			s.seen["audited "+string(state)]++
		}
	}
}

// deliver is the handler.
func (s *sim) deliver(c int, e event, checkpoint int64) {
	p := s.disk.progress[c]
	for _, old := range p.ledger {
		switch {
		case old.uid == e.uid:
			s.violate("TWICE consumer %d applied position %d", c, e.position)
		case old.position == e.position:
			s.violate("REISSUED consumer %d applied position %d of two events", c, e.position)
		case old.agg == e.agg && old.version >= e.version:
			s.violate("ORDER consumer %d applied version %d of aggregate %d after version %d", c, e.version, e.agg, old.version)
		case s.strict && old.position > e.position:
			s.violate("ORDER consumer %d applied position %d after %d", c, e.position, old.position)
		}
	}
	if e.position <= checkpoint {
		s.seen["late"]++
	}
	p.ledger = append(p.ledger, e)
}
