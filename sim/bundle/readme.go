package bundle

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pgfrontier/worker/sim/oracle"
)

// writeReadme says what is in the directory, and what can be done with it.
func writeReadme(w io.Writer, dir string, r *oracle.Report, logs []Log) error {
	var b strings.Builder
	fmt.Fprintf(&b, `A run of workers under faults, as it was kept.

verdict: %s

Read it, in a browser:             %s
Judge it again, without database:  go run ./cmd/sim -check %s
Run it again:                      %s
`, r.Verdict, pictureFile, dir, r.Repeat)
	if r.Outcome == oracle.Broken && r.Reduce != "" {
		fmt.Fprintf(&b, "Find a smaller run that fails:     %s\n", r.Reduce)
	}
	b.WriteString(`
The seed decides the settings and what each actor does, not how server and
scheduler interleave it: what broke once may take a few tries to break again.

`)
	line := func(file, holds string) { fmt.Fprintf(&b, "%-18s %s\n", file, holds) }
	for _, p := range partsOf(r.Evidence) {
		line(p.file, p.holds)
	}
	line(reportFile, "what the run was, what was drawn, counted and found")
	for _, l := range logs {
		line(l.Name, "what was written beside; the run's time 0 is "+r.Began.UTC().Format(time.RFC3339Nano))
	}
	b.WriteString("\nIn a .jsonl file each line is a JSON object. What it said when it ended:\n\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	return r.WriteText(w)
}
