package jobrun

import (
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
)

// Gather bounds the pause in which free slots gather for the next claim, while more jobs are due
// than slots.
const Gather = 5 * time.Millisecond

// Polls decides when an idle worker polls. The pause doubles from First to Longest.
type Polls struct {
	First, Longest time.Duration
	Quiet          int // consecutive polls that have found no job to wait for
}

// Ahead returns the longest duration of the next pause.
func (p Polls) Ahead() time.Duration { return backoff.Doubled(p.Quiet, p.First, p.Longest) }

// Next returns the pause after a poll, and the state after the poll. The pause doubles after quiet
// polls only. It is shorter by up to a quarter: random is in [0, 1).
func (p Polls) Next(quiet bool, random float64) (time.Duration, Polls) {
	if !quiet {
		p.Quiet = 0
	}
	pause := p.Ahead()
	pause -= time.Duration(random * float64(pause) / 4)
	if quiet {
		p.Quiet++
	}
	return pause, p
}

// Soon makes the poll that is due at the given time come after the first pause at the latest.
func (p Polls) Soon(now, at time.Time) (time.Time, Polls) {
	p.Quiet = 0
	if next := now.Add(p.First); next.Before(at) {
		at = next
	}
	return at, p
}
