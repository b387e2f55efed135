package worker

import (
	"fmt"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// errTooManyOpen makes a consumer wait.
type errTooManyOpen struct {
	unit string
	max  int
	at   int64
}

func (e errTooManyOpen) Error() string {
	return fmt.Sprintf("worker: consumer %q waits at position %d: it has passed %d ranges of positions in doubt, as many as WithMaxOpenRanges allows; end the transactions that stay open (Status lists them), or raise the option", e.unit, e.at, e.max)
}

// cross decides what going over the page means. It shortens the page where
// going on would open more ranges than maxOpen.
func (p *page) cross(v *frontier.Value, open []openRange, maxOpen int) (a advance, blocked bool) {
	crossing := v.Cross(p.look)
	if room := maxOpen - openAfter(crossing, len(open)); room < 0 {
		// Stop before the first range for which there is no room.
		keep := max(len(crossing.Opened)+room, 0)
		if keep < len(crossing.Opened) {
			p.endAt(max(crossing.Opened[keep].First-1, p.look.Checkpoint))
			crossing = v.Cross(p.look)
			blocked = true
		}
	}
	a = advance{to: crossing.To, token: v.Token, under: v}
	void := crossing.Void
	if p.void.Count > 0 {
		void = p.void
	}
	if void.Count > 0 {
		a.marks = append(a.marks, mark{Range: void.Range, Missing: void.Count, State: SkipVoid})
	}
	a.mark(SkipOpen, crossing.Opened, nil)
	for _, closed := range crossing.Closed {
		o := open[closed.Index]
		a.gone = append(a.gone, o.ID)
		a.mark(SkipLate, closed.Late, &o)
		a.mark(SkipVoid, closed.Void, &o)
		a.mark(SkipOpen, closed.Remains, &o)
	}
	return a, blocked
}

// visible returns the highest visible position, as far as this worker has seen.
// WithStaleGapHarborLag keeps v.Safe below it.
func (w *Worker) visible(v *frontier.Value) int64 {
	head, _ := w.frontier.Head()
	return max(head, v.Safe)
}

// openAfter counts the open ranges after a crossing.
func openAfter(c frontier.Crossing, before int) int {
	n := before + len(c.Opened)
	for _, closed := range c.Closed {
		n += len(closed.Remains) - 1
	}
	return n
}

// endAt shortens a page. Events are in order of position, late ones first.
func (p *page) endAt(through int64) {
	p.look.Through, p.full = through, true
	for n := len(p.events); n > 0 && p.events[n-1].GlobalPosition > through; n-- {
		p.events = p.events[:n-1]
	}
	for n := len(p.look.Found); n > 0 && p.look.Found[n-1] > through; n-- {
		p.look.Found = p.look.Found[:n-1]
	}
}

func (a *advance) mark(state SkipState, spans []store.Range, from *openRange) {
	for _, s := range spans {
		m := mark{Range: s, Missing: s.Count(), State: state}
		if from != nil {
			m.Seen = &from.Seen
		}
		a.marks = append(a.marks, m)
	}
}

// movesOpen reports that the consumer's open ranges change.
func (a *advance) movesOpen() bool {
	if len(a.gone) > 0 {
		return true
	}
	for _, m := range a.marks {
		if m.State == SkipOpen {
			return true
		}
	}
	return false
}

// empty reports that nothing would change.
func (a *advance) empty(checkpoint int64) bool {
	return a.to == checkpoint && len(a.marks) == 0
}
