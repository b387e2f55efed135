package oracle

import (
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

// JobsDone sums up a run of jobs, or several.
type JobsDone struct {
	Enqueued  int64 `json:"enqueued"`  // committed
	Completed int64 `json:"completed"` //
	Runs      int64 `json:"runs"`      // of handlers
	Claims    int64 `json:"claims"`    // of jobs
}

// jobsDone counts what was done, nil if it was no run of jobs.
func jobsDone(e *history.Evidence) *JobsDone {
	if e.Jobs == nil {
		return nil
	}
	d := &JobsDone{Runs: int64(len(e.Jobs.Runs))}
	for _, q := range e.Jobs.Enqueued {
		d.Enqueued += one(q.Outcome == history.EnqueueCommitted && !q.Existing)
	}
	for _, f := range e.Jobs.Finished {
		d.Completed += one(f.State == "completed")
	}
	for _, s := range e.Jobs.Steps {
		d.Claims += one(s.State == "running" && s.Was == "available")
	}
	return d
}

// plus adds two sums, of which both may be nil.
func (d *JobsDone) plus(other *JobsDone) *JobsDone {
	if d == nil || other == nil {
		if d == nil {
			return other
		}
		return d
	}
	return &JobsDone{d.Enqueued + other.Enqueued, d.Completed + other.Completed, d.Runs + other.Runs, d.Claims + other.Claims}
}

// write prints the sums; nothing if there are none.
func (d *JobsDone) write(b *strings.Builder) {
	if d == nil {
		return
	}
	for _, l := range []struct {
		what string
		n    int64
	}{{"jobs enqueued", d.Enqueued}, {"jobs completed", d.Completed}, {"jobs claimed, again and again", d.Claims}, {"runs of handlers", d.Runs}} {
		fmt.Fprintf(b, "  %-56s %8s\n", l.what, thousands(l.n))
	}
}
