// Package bundle keeps a run in a directory: its settings, its history, the evidence and a picture.
// The files are for people, for programs that read JSON lines, and for the oracle, which judges the
// run again without workers or a database.
package bundle

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// The files beside those of the parts.
const (
	readmeFile  = "README.txt"
	reportFile  = "report.json"
	pictureFile = "picture.html"
)

// part is a list that has a file of its own, with an object a line.
type part struct {
	file, holds string
	write       func(*history.Evidence, *json.Encoder) (lines int, err error)
	read        func(*history.Evidence, *reader) (lines int, err error)
}

var parts = []part{
	{"history.jsonl", "all that happened, in order of time", writeHistory, readHistory},
	linesOf("committed.jsonl", "the events that writers committed, by their own ledgers", func(e *history.Evidence) *[]history.Event { return &e.Committed }),
	linesOf("unsure.jsonl", "the transactions that a crash may have taken back", func(e *history.Evidence) *[][]history.Event { return &e.Unsure }),
	linesOf("abandoned.jsonl", "the events that writers rolled back", func(e *history.Evidence) *[]history.Event { return &e.Abandoned }),
	linesOf("log.jsonl", "the events table, in order of position", func(e *history.Evidence) *[]history.Event { return &e.Log }),
	linesOf("ledger.jsonl", "what the consumers applied, in that order", func(e *history.Evidence) *[]history.Entry { return &e.Ledger }),
	linesOf("audit.jsonl", "the rows of skipped positions", func(e *history.Evidence) *[]history.Skip { return &e.Skips }),
	linesOf("operations.jsonl", "what operators did to the consumers", func(e *history.Evidence) *[]history.Operation { return &e.Operations }),
	linesOf("forgotten.jsonl", "ranges in doubt that went when a consumer was set back", func(e *history.Evidence) *[]history.Skip { return &e.Forgotten }),
	linesOf("rewatched.jsonl", "positions that a part had passed as void, and that were watched again after a merge", func(e *history.Evidence) *[]history.Skip { return &e.Rewatched }),
	linesOf("trespasses.jsonl", "batches begun by a worker to which the consumer was not assigned", func(e *history.Evidence) *[]history.UnauthorizedBatch { return &e.Unauthorized }),
	linesOf("assignments.jsonl", "what workers assigned to each other", func(e *history.Evidence) *[]history.Assignment { return &e.Assignments }),
	linesOf("sightings.jsonl", "where the consumers stood while positions were still to be committed", func(e *history.Evidence) *[]history.Sighting { return &e.Sightings }),
	linesOf("samples.jsonl", "where they stood a few times a second", func(e *history.Evidence) *[][]history.Standing { return &e.Samples }),
	linesOf("exits.jsonl", "how the workers ended", func(e *history.Evidence) *[]history.Exit { return &e.Exits }),
}

// head is the file of all that is no list. It has the lengths of the lists, so a file that has lost
// its end is detected.
type head struct {
	Report   *oracle.Report    `json:"report"`
	Evidence *history.Evidence `json:"evidence"`
	Lines    map[string]int    `json:"lines"`
}

// Log is a text that belongs to a run: what a server wrote, say.
type Log struct {
	Name string // of its file, as "server.log"
	Text io.Reader
}

// Save keeps a run that was judged in the directory dir, which it makes. It
// never overwrites: if dir exists, the error is fs.ErrExist.
func Save(dir string, r *oracle.Report, logs ...Log) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("sim: keep the run: %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("sim: keep the run: %w", err)
	}
	h := head{r, r.Evidence, map[string]int{}}
	for _, p := range partsOf(r.Evidence) {
		if err := create(dir, p.file, func(w io.Writer) (err error) {
			e := json.NewEncoder(w)
			e.SetEscapeHTML(false)
			h.Lines[p.file], err = p.write(r.Evidence, e)
			return err
		}); err != nil {
			return err
		}
	}
	for _, l := range logs {
		if err := create(dir, l.Name, func(w io.Writer) error { _, err := io.Copy(w, l.Text); return err }); err != nil {
			return err
		}
	}
	return errors.Join(
		create(dir, reportFile, func(w io.Writer) error {
			e := json.NewEncoder(w)
			e.SetEscapeHTML(false)
			e.SetIndent("", "  ")
			return e.Encode(h)
		}),
		create(dir, pictureFile, r.WritePicture),
		create(dir, readmeFile, func(w io.Writer) error { return writeReadme(w, dir, r, logs) }),
	)
}

// Keep saves a run in dir or, if dir exists, in the first free one of dir-2, dir-3 and so on. It
// returns the directory.
func Keep(dir string, r *oracle.Report, logs ...Log) (as string, err error) {
	as = dir
	for n := 2; ; n++ {
		if err = Save(as, r, logs...); !errors.Is(err, fs.ErrExist) {
			return as, err
		}
		as = fmt.Sprintf("%s-%d", dir, n)
	}
}

func create(dir, name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("sim: keep the run: %w", err)
	}
	w := bufio.NewWriter(f)
	if err := errors.Join(write(w), w.Flush(), f.Close()); err != nil {
		return fmt.Errorf("sim: keep the run: %s: %w", f.Name(), err)
	}
	return nil
}

// Load reads a report that Save has kept, with all its evidence. The report's Judge judges it
// again. Errors name file and line.
func Load(dir string) (*oracle.Report, error) {
	text, err := os.ReadFile(filepath.Join(dir, reportFile))
	if err != nil {
		return nil, fmt.Errorf("sim: this is not the directory of a run that was kept: %w", err)
	}
	var h head
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, fmt.Errorf("sim: %s: %w", at(filepath.Join(dir, reportFile), text, err), err)
	}
	if h.Report == nil || h.Evidence == nil || h.Lines == nil {
		return nil, fmt.Errorf("sim: %s: report, evidence or lines are missing", filepath.Join(dir, reportFile))
	}
	for _, p := range partsOf(h.Evidence) {
		r, err := open(filepath.Join(dir, p.file))
		if err != nil {
			return nil, err
		}
		n, err := p.read(h.Evidence, r)
		if err = errors.Join(err, r.file.Close()); err != nil {
			return nil, err
		}
		if want := h.Lines[p.file]; n != want {
			return nil, fmt.Errorf("sim: %s:%d: the file ends here, after %d of %d lines", r.file.Name(), n, n, want)
		}
	}
	h.Report.Evidence = h.Evidence
	return h.Report, senseless(dir, h.Evidence)
}

// at names the line of a file that an error of JSON is about.
func at(file string, text []byte, err error) string {
	end := int64(len(text))
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		end = syntax.Offset
	case errors.As(err, &kind):
		end = kind.Offset
	}
	return fmt.Sprintf("%s:%d", file, 1+strings.Count(string(text[:min(end, int64(len(text)))]), "\n"))
}

// jobParts are the parts of a run of jobs, beside its history and how its workers
// ended.
var jobParts = []part{
	linesOf("enqueued.jsonl", "what enqueuers asked for, by their own ledgers", func(e *history.Evidence) *[]history.Enqueued { return &e.Jobs.Enqueued }),
	linesOf("cancels.jsonl", "which jobs clients and operators cancelled", func(e *history.Evidence) *[]history.Cancel { return &e.Jobs.Cancels }),
	linesOf("runs.jsonl", "what handlers did with jobs, by their own ledgers", func(e *history.Evidence) *[]history.JobRun { return &e.Jobs.Runs }),
	linesOf("told.jsonl", "what workers told of the ends of runs", func(e *history.Evidence) *[]history.Told { return &e.Jobs.Told }),
	linesOf("effects.jsonl", "what handlers wrote in the transactions that complete their jobs", func(e *history.Evidence) *[]history.Effect { return &e.Jobs.Effects }),
	linesOf("finished.jsonl", "the table of finished jobs", func(e *history.Evidence) *[]history.Finished { return &e.Jobs.Finished }),
	linesOf("unfinished.jsonl", "the table of unfinished jobs", func(e *history.Evidence) *[]history.Unfinished { return &e.Jobs.Left }),
	linesOf("attempts.jsonl", "the table of attempts", func(e *history.Evidence) *[]history.JobAttempt { return &e.Jobs.Attempts }),
	linesOf("steps.jsonl", "every change of a job's state, in order", func(e *history.Evidence) *[]history.JobStep { return &e.Jobs.Steps }),
	linesOf("claims.jsonl", "claims of queues with a cap or a pause, counted again", func(e *history.Evidence) *[]history.CappedRun { return &e.Jobs.Claims }),
	linesOf("resets.jsonl", "runs that were taken from workers that counted as dead", func(e *history.Evidence) *[]history.JobReset { return &e.Jobs.Resets }),
	linesOf("schedules.jsonl", "every change of a schedule's row, in order", func(e *history.Evidence) *[]history.ScheduleChange { return &e.Jobs.Changes }),
	linesOf("ticks.jsonl", "the jobs that schedules enqueued", func(e *history.Evidence) *[]history.Tick { return &e.Jobs.Ticks }),
	linesOf("flows.jsonl", "which runs of flows enqueuers started, by their own ledgers", func(e *history.Evidence) *[]history.Enqueued { return &e.Jobs.Started }),
	linesOf("flowsteps.jsonl", "every change of a run of a flow and of its steps, in order", func(e *history.Evidence) *[]history.FlowChange { return &e.Jobs.Advances }),
	linesOf("flowjobs.jsonl", "the jobs that runs of flows enqueued", func(e *history.Evidence) *[]history.StepJob { return &e.Jobs.StepJobs }),
}

// partsOf are the parts of a run: those of events, or those of jobs.
func partsOf(e *history.Evidence) []part {
	if e.Jobs == nil {
		return parts
	}
	first, last := parts[0], parts[len(parts)-1]
	return append(append([]part{first}, slices.Clip(jobParts)...), last)
}
