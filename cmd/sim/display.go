package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pgfrontier/worker/sim"
)

// display shows how a run comes along: one line that changes on a terminal,
// elsewhere a line every few seconds.
type display struct {
	w        io.Writer
	terminal bool
	last     time.Time
}

const lineEvery = 3 * time.Second

func newDisplay(w io.Writer) *display {
	d := &display{w: w, last: time.Now()}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		d.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return d
}

func (d *display) progress(p sim.Progress) {
	line := fmt.Sprintf("%5.1fs  %6d events appended, %6d handled by every consumer, lag %5d, %3d crashes",
		p.Elapsed.Seconds(), p.Appended, p.Handled, p.Lag, p.Crashes)
	if d.terminal {
		fmt.Fprintf(d.w, "\r%s\x1b[K", line)
		return
	}
	if time.Since(d.last) >= lineEvery {
		d.last = time.Now()
		fmt.Fprintln(d.w, line)
	}
}

// done makes room for the report.
func (d *display) done() {
	if d.terminal {
		fmt.Fprint(d.w, "\r\x1b[K")
	}
}
