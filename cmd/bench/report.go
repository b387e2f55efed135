package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// durations are measured times.
type durations []time.Duration

// quantile returns the smallest duration that at least the share q of all do
// not exceed (nearest rank), 0 if there are none.
func (d durations) quantile(q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func (d durations) p50() time.Duration { return d.quantile(0.50) }
func (d durations) p95() time.Duration { return d.quantile(0.95) }
func (d durations) p99() time.Duration { return d.quantile(0.99) }
func (d durations) max() time.Duration { return d.quantile(1) }

func (d durations) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, max %s", short(d.p50()), short(d.p99()), short(d.max()))
}

// few shows durations that are too few for a p99.
func (d durations) few() string {
	return fmt.Sprintf("p50 %s, p95 %s, max %s", short(d.p50()), short(d.p95()), short(d.max()))
}

// short writes a duration with two or three digits that matter.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}

// grouped writes a number with commas.
func grouped[N int | int64 | float64](n N) string {
	digits := strconv.FormatInt(int64(math.Round(float64(n))), 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// row is one line of the table.
type row struct {
	part     string // of the scenario
	measured string
	goal     string // empty: there is none
	reached  bool
	counted  int // deliveries that were checked

	// For the plot: a share of what a control in the same run reached, and the
	// least it should be. 0: there is none.
	ratio, least float64
}

func (r row) verdict() string {
	switch {
	case r.goal == "":
		return ""
	case r.reached:
		return "yes"
	default:
		return "NO"
	}
}

// report is what was measured, and on what.
type report struct {
	machine   []string
	command   string
	rows      []line
	broken    []string // what must never be, for each scenario that showed it
	loadAfter string
}

type line struct {
	scenario string
	row
}

func newReport(ctx context.Context, l *lab, o options) (*report, error) {
	r := &report{command: "go run ./cmd/bench"}
	if o.long {
		r.command += " -long"
	}
	cpu := ""
	if name := field("/proc/cpuinfo", "model name"); name != "" {
		cpu = " (" + name + ")"
	}
	r.machine = []string{
		fmt.Sprintf("cores: %d%s, for the server, the writers and the workers together; %s, %s/%s", runtime.NumCPU(), cpu, runtime.Version(), runtime.GOOS, runtime.GOARCH),
		fmt.Sprintf("load average of the last minute: %s before", loadAverage()),
	}
	if o.note != "" {
		r.machine = append(r.machine, o.note)
	}
	return r, l.onSite(ctx, func(s *site) error {
		settings := []string{"synchronous_commit", "fsync", "shared_buffers"}
		for i, name := range settings {
			var value string
			if err := s.db.QueryRowContext(ctx, `SELECT current_setting($1::text)`, name).Scan(&value); err != nil {
				return err
			}
			settings[i] = name + " " + value
		}
		r.machine = append(r.machine, fmt.Sprintf("PostgreSQL %s, %s", l.server.Version(), strings.Join(settings, ", ")))
		return nil
	})
}

// add takes the rows of a scenario, or what was wrong with it.
func (r *report) add(s scenario, rows []row, err error) {
	for _, x := range rows {
		r.rows = append(r.rows, line{s.name, x})
	}
	if err != nil {
		r.broken = append(r.broken, fmt.Sprintf("%s: %v", s.name, err))
	}
}

var header = []string{"scenario", "", "measured", "goal", "reached", "each once"}

func (l line) cells() []string {
	counted := ""
	if l.counted > 0 {
		counted = grouped(l.counted)
	}
	return []string{l.scenario, l.part, l.measured, l.goal, l.verdict(), counted}
}

// facts are the lines about the machine.
func (r *report) facts() []string {
	facts := slices.Clone(r.machine)
	if r.loadAfter != "" {
		facts[1] += ", " + r.loadAfter + " after"
	}
	return facts
}

func (r *report) writeText(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.facts() {
		fmt.Fprintln(&b, f)
	}
	fmt.Fprintln(&b)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(header, "\t"))
	last := ""
	for _, l := range r.rows {
		cells := l.cells()
		if l.scenario == last {
			cells[0] = ""
		}
		last = l.scenario
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, broken := range r.broken {
		fmt.Fprintf(&b, "\nBROKEN: %s\n", broken)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeMarkdown writes a page that shows the plot in that file.
func (r *report) writeMarkdown(w io.Writer, plot string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Performance\n\n%s\n\nMade by `%s -markdown docs/performance.md` on:\n\n", introduction, r.command)
	for _, f := range r.facts() {
		fmt.Fprintf(&b, "- %s\n", f)
	}
	fmt.Fprintf(&b, "\n| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat("---|", len(header)))
	for _, l := range r.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(l.cells(), " | "))
	}
	for _, broken := range r.broken {
		fmt.Fprintf(&b, "\n**BROKEN**: %s\n", broken)
	}
	fmt.Fprintf(&b, "\n![The ratios of the table against their goals](%s)\n", plot)
	fmt.Fprint(&b, "\n"+memory)
	fmt.Fprint(&b, "\n## What the scenarios do\n\nThe command that makes the rows of each stands before it.\n\n")
	for _, s := range scenarios {
		fmt.Fprintf(&b, "- `%s -run %s`: %s\n", r.command, s.name, s.about)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const introduction = "`make bench` makes this table in a shorter run. Times depend on the machine, and on what\n" +
	"else it does meanwhile: compare within a run, and make your own. A control is what the same machine\n" +
	"does in the same run without the library; a share of it depends on the machine the least.\n" +
	"\"Each once\" is how many deliveries were counted and found right: every committed event\n" +
	"handled exactly once by every consumer, nothing else handled, and the checkpoint at the\n" +
	"head. Where other processes handle the events, or the server goes away, it is the rows\n" +
	"that the consumers wrote which are counted, and for `scale` it is consumers that belonged\n" +
	"to exactly one worker."

// loadAverage is that of the last minute, where the system tells it.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// field returns the first value of a name in a file of "name: value" lines.
func field(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// memory is measured by hand: no scenario has events of this size.
const memory = `## Memory

A read brings 8 MiB of payload and metadata at most, and the event that reaches
that bound. For all consumers of a worker the frontier's tail cache keeps 4 MiB, and
16 MiB are kept of what was read ahead. Each consumer that is behind holds the page in
hand, 8 MiB at most. Add what the driver and the garbage collector need; an event that
is larger counts in full. Measured: 400 events of 2 MB, four consumers, default options:
the process needed 157 MB at its peak (VmHWM), where reads without a bound took 1.67 GB.

A store of your own is bounded exactly if it is a ` + "`" + `store.SizedReader` + "`" + `. Any other
is asked for fewer events after a read that brought large ones.
`
