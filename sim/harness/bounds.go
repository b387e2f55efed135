// Package harness has what the simulation and the chaos need to tell a failure of
// their own from one of the library: how long they wait, measured against the
// machine, and the error with which they give up.
package harness

import (
	"fmt"
	"time"
)

// Bounds scales the bounds of the harness. A bound is stated for the reference, a quiet
// machine with two cores. The zero value is that machine. Settings that a seed draws for
// the library are not scaled.
type Bounds struct {
	// Slowness is how many times as long as the reference this machine takes, 1 to
	// MaxSlowness as Measure returns it. 0 is 1.
	Slowness float64
	// Patience is how many times as long the harness waits beside that. 0 is 1.
	Patience float64
}

// MaxSlowness is the most that Measure returns. A server that is slower still is not
// waited for.
const MaxSlowness = 20

// Of returns how long the harness waits for what the reference does in d.
func (b Bounds) Of(d time.Duration) time.Duration {
	return time.Duration(float64(d) * orOne(b.Slowness) * orOne(b.Patience))
}

// Times returns the bounds n times as long. 0 is 1.
func (b Bounds) Times(n float64) Bounds {
	b.Patience = orOne(b.Patience) * orOne(n)
	return b
}

func (b Bounds) String() string {
	s := fmt.Sprintf("%.1f times as slow as the reference; bounds of the harness are scaled by that", orOne(b.Slowness))
	if p := orOne(b.Patience); p != 1 {
		s += fmt.Sprintf(", and by %g", p)
	}
	return s
}

func orOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}
