package command

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Progress shows how work comes along: one line that changes on a terminal,
// elsewhere a line every few seconds.
type Progress struct {
	w        io.Writer
	terminal bool
	last     time.Time
}

const lineEvery = 3 * time.Second

// NewProgress shows progress on w.
func NewProgress(w io.Writer) *Progress {
	p := &Progress{w: w, last: time.Now()}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// Show shows a line, or leaves it out if the previous line is recent.
func (p *Progress) Show(line string) {
	if p.terminal {
		fmt.Fprintf(p.w, "\r%s\x1b[K", line)
		return
	}
	if time.Since(p.last) >= lineEvery {
		p.last = time.Now()
		fmt.Fprintln(p.w, line)
	}
}

// Done makes room for what is printed next.
func (p *Progress) Done() {
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
