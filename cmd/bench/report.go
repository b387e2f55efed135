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

func newReport(ctx context.Context, l *lab, long bool, note string) (*report, error) {
	r := &report{command: "go run ./cmd/bench"}
	if long {
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
	if note != "" {
		r.machine = append(r.machine, note)
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
func (r *report) add(scenario string, rows []row, err error) {
	for _, x := range rows {
		r.rows = append(r.rows, line{scenario, x})
	}
	if err != nil {
		r.broken = append(r.broken, fmt.Sprintf("%s: %v", scenario, err))
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
	fmt.Fprintf(&b, "# Performance\n\n%s\n\n`%s -run latency` makes the rows of one scenario; `-h` says what each does.\nMade by `%s -markdown docs/performance.md` on:\n\n", introduction, r.command, r.command)
	for _, f := range r.facts() {
		fmt.Fprintf(&b, "- %s\n", f)
	}
	fmt.Fprint(&b, "\n| scenario |  | measured | goal | each once |\n|---|---|---|---|---|\n")
	for _, l := range r.rows {
		c := l.cells()
		if c[3] != "" && !l.reached {
			c[3] += ": NO"
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(append(c[:4], c[5]), " | "))
	}
	for _, broken := range r.broken {
		fmt.Fprintf(&b, "\n**BROKEN**: %s\n", broken)
	}
	fmt.Fprintf(&b, "\n![The ratios of the table against their goals](%s)\n", plot)
	fmt.Fprint(&b, "\n"+byHand)
	_, err := io.WriteString(w, b.String())
	return err
}

const introduction = `Times depend on the machine and its load: compare within a run. ` + "`" + `make bench` + "`" + ` makes a shorter run. A control is
what the machine does in the same run without the library. "Each once" counts deliveries: every consumer handled
every committed event exactly once. For ` + "`" + `scale` + "`" + ` it counts consumers that exactly one worker had.`

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

// byHand has what no scenario measures.
const byHand = `## Memory

| what | at most |
|---|---|
| a read | 8 MiB of payload and metadata, and the event that reaches this bound |
| the frontier's tail cache, for all consumers of a worker | 4 MiB |
| read-ahead, for all consumers of a worker | 16 MiB |
| the page in flight of each consumer that is behind | 8 MiB |

Add what the driver and the garbage collector need. A larger event counts in full. With 400 events of 2 MB, four
consumers and default options, the process peaked at 157 MB. The bound is exact for a ` + "`" + `store.SizedReader` + "`" + `. Any
other store is asked for fewer events after a read that brought large ones.

## Partitions

` + "`" + `go run ./cmd/bench -long -run partitions,partitions-head,rescale` + "`" + `, twice, on two idle cores:

| handler | partitions | events/s, times those of one |
|---|---|---|
| sleeps 1 ms, one worker | 2 / 4 / 8 | 1.96 / 3.80 / 7.24 |
| sleeps 1 ms, a process each | 2 / 4 / 8 | 1.99 / 3.91 / 7.66 |
| one upsert an event, one worker | 2 / 4 / 8 | 2.18 / 2.94 / 3.05 |
| nothing, one worker | 4 | 1.09 |

With 1,000 events/s, a split from 4 to 8 delayed no key for longer than 131 ms, a merge to 3 for no longer than
147 ms. The CPU is the limit. Two slower cores, which the appends kept busy, gave 1.3 / 1.5 / 1.8 for
upserts, and delays up to 0.9 s.

| at the head of the log, 1,000 appends/s | one | 8 partitions |
|---|---|---|
| statements an event | 2.1 | 2.4 |
| p50 from the commit to the handler's commit | 4 ms | 9 ms |
| p99 | 12 ms | 17 ms |

## Metrics

An event takes 4.4 µs of the process's CPU without metrics, 6.2 µs with module ` + "`" + `prometheus` + "`" + `, and 5.2 µs with module ` + "`" + `otel` + "`" + `.
With a span for each batch and links to producers it takes 10.4 µs, with event spans 13.1 µs. Handlers do nothing; one
that writes a row takes some 100 µs. Batches of 100, two busy cores:
` + "`" + `go test -run '^$' -bench . -benchtime 50000x -count 5` + "`" + ` in either module.

## The console

200 workers with code for 2,000 consumers, 1,000,000 rows in the audits, 20,000 dead letters and 100,000 jobs, 2 cores:
overview, a consumer, workers and blocked take 72 to 96 ms, at most 118. They read all checkpoints and all reports of
workers; live updates do so once in two seconds for all viewers. Other pages take at most 29 ms. No page was above
90 KiB. On a busy machine the overview took up to three times as long.
` + "`" + `go test ./ops/console -run '^$' -bench Pages -benchtime 12x` + "`" + ` measures this.

## The audit

After 1,000,000 appends with 5% rolled back, ` + "`" + `consumer_gap_skips` + "`" + ` of one consumer had 66 rows in 0.7 MB.
`
