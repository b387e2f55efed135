package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what was measured, and on what.
type report struct {
	options   options
	machine   []string
	blocks    []block
	broken    []string // what must never be
	loadAfter string
}

// block is a group with the results of each contestant, in the order of rounds.
type block struct {
	scenario string
	group
	results [][]result
}

func newReport(ctx context.Context, l *lab) (*report, error) {
	cpu := ""
	if name := field("/proc/cpuinfo", "model name"); name != "" {
		cpu = " (" + name + ")"
	}
	r := &report{options: l.options, machine: []string{
		fmt.Sprintf("cores: %d%s, for the server and the client together; %s, %s/%s", runtime.NumCPU(), cpu, runtime.Version(), runtime.GOOS, runtime.GOARCH),
		fmt.Sprintf("load average of the last minute: %s before", loadAverage()),
		fmt.Sprintf("River %s; connections in each pool: %d; medians of %d rounds", version("github.com/riverqueue/river"), l.options.conns, l.options.rounds),
	}}
	s, err := l.newSite(ctx, "")
	if err != nil {
		return nil, err
	}
	settings := []string{"fsync", "synchronous_commit", "full_page_writes", "shared_buffers"}
	for i, name := range settings {
		var value string
		if err := s.db.QueryRow(ctx, `SELECT current_setting($1::text)`, name).Scan(&value); err != nil {
			return nil, err
		}
		settings[i] = name + " " + value
	}
	r.machine = append(r.machine, fmt.Sprintf("PostgreSQL %s, %s", l.server.Version(), strings.Join(settings, ", ")))
	return r, s.drop()
}

// version is that of a module this program was built with.
func version(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return "of unknown version"
}

func (r *report) write(w io.Writer) error {
	var b strings.Builder
	for i, fact := range r.machine {
		if i == 1 && r.loadAfter != "" {
			fact += ", " + r.loadAfter + " after"
		}
		fmt.Fprintln(&b, fact)
	}
	fmt.Fprintln(&b)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "scenario\t\t%s\t%s\tratio\tof rounds\tCPU a job: %[1]s, %[2]s\teach once\n", theirs.name, ours.name)
	for _, block := range r.blocks {
		for _, pair := range block.pairs {
			fmt.Fprintln(t, strings.Join(block.cells(pair[0], pair[1]), "\t"))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprint(&b, legend)
	if r.options.statements {
		for _, block := range r.blocks {
			block.writeStatements(&b)
		}
	}
	for _, broken := range r.broken {
		fmt.Fprintf(&b, "\nBROKEN: %s\n", broken)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const legend = `
A ratio above 1: jobs does more in a second, or starts a job earlier. "Of rounds" are the
lowest and the highest ratio of one round. Latencies are those of all rounds together.
CPU is that of the client, which is this process, and that of the server's processes.
"Each once" is how many jobs were counted and found right.
`

// cells are a row of the table.
func (b block) cells(first, second int) []string {
	all := []string{b.scenario, b.about, b.measured(first), b.measured(second), "", "",
		b.cpu(first) + ", " + b.cpu(second), grouped(b.counted(first) + b.counted(second))}
	var rounds []float64
	for i := range min(len(b.results[first]), len(b.results[second])) {
		rounds = append(rounds, ratio(b.results[first][i], b.results[second][i]))
	}
	if len(rounds) == 0 {
		return all
	}
	all[4] = fmt.Sprintf("%.2f", middle(rounds))
	all[5] = fmt.Sprintf("%.2f to %.2f", slices.Min(rounds), slices.Max(rounds))
	if d, other := b.latencies(first), b.latencies(second); d != nil {
		all[4] = fmt.Sprintf("p50 %.2f, p99 %.2f", d.over(other, 0.5), d.over(other, 0.99))
	}
	return all
}

// ratio is how much better the second result is.
func ratio(first, second result) float64 {
	if first.latencies != nil {
		return first.latencies.over(second.latencies, 0.5)
	}
	return second.rate() / first.rate()
}

// measured is the median of a contestant's rates, or all its latencies.
func (b block) measured(contestant int) string {
	way := b.contestants[contestant].way
	if way != "" {
		way += ": "
	}
	if len(b.results[contestant]) == 0 {
		return way + "failed"
	}
	if d := b.latencies(contestant); d != nil {
		return way + d.String()
	}
	var rates []float64
	for _, r := range b.results[contestant] {
		rates = append(rates, r.rate())
	}
	return way + grouped(middle(rates)) + "/s"
}

func (b block) latencies(contestant int) (all durations) {
	for _, r := range b.results[contestant] {
		all = append(all, r.latencies...)
	}
	return all
}

// cpu is what the client and the server needed for a job.
func (b block) cpu(contestant int) string {
	var client, server []float64
	for _, r := range b.results[contestant] {
		if !r.spent.known {
			return "unknown"
		}
		client = append(client, float64(r.spent.client.Microseconds())/float64(r.jobs))
		server = append(server, float64(r.spent.server.Microseconds())/float64(r.jobs))
	}
	return fmt.Sprintf("%s + %s µs", grouped(middle(client)), grouped(middle(server)))
}

// counted is how many jobs of a contestant were counted.
func (b block) counted(contestant int) (sum int) {
	for _, r := range b.results[contestant] {
		sum += r.jobs
	}
	return sum
}

// writeStatements lists what each contestant sent in its first run.
func (b block) writeStatements(w *strings.Builder) {
	for i, c := range b.contestants {
		if len(b.results[i]) == 0 {
			continue
		}
		r := b.results[i][0]
		fmt.Fprintf(w, "\n%s, %s, %s %s\n", b.scenario, b.about, c.side.name, c.way)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "calls\ta job\tms in all\tms each\tplans\tms in all\trows\tWAL bytes a job\tstatement")
		for _, s := range r.said {
			fmt.Fprintf(t, "%s\t%.3f\t%.0f\t%.3f\t%s\t%.0f\t%s\t%.0f\t%s\n", grouped(s.Calls), float64(s.Calls)/float64(r.jobs),
				s.Ms, s.Ms/float64(s.Calls), grouped(s.Plans), s.Plan, grouped(s.Rows), float64(s.WAL)/float64(r.jobs), s.brief())
		}
		t.Flush() // to a Builder, which takes all
	}
}

// middle is the median, 0 of nothing.
func middle(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

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

// over is how many times longer a quantile is than that of others.
func (d durations) over(others durations, q float64) float64 {
	return d.quantile(q).Seconds() / others.quantile(q).Seconds()
}

func (d durations) String() string {
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s", short(d.quantile(0.5)), short(d.quantile(0.9)), short(d.quantile(0.99)))
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
