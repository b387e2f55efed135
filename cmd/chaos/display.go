//go:build unix

package main

import (
	"fmt"
	"io"
	"time"

	"github.com/pgfrontier/worker/sim"
)

// display shows how a run comes along, in a line now and then.
type display struct {
	w    io.Writer
	next time.Duration // into the run
}

const lineEvery = 5 * time.Second

func newDisplay(w io.Writer) *display { return &display{w: w, next: lineEvery} }

func (d *display) progress(p sim.Progress) {
	if p.Elapsed < d.next {
		return
	}
	d.next = p.Elapsed + lineEvery
	fmt.Fprintf(d.w, "%6.0fs  %7d events appended, %7d handled by every consumer, lag %5d\n",
		p.Elapsed.Seconds(), p.Appended, p.Handled, p.Lag)
}
