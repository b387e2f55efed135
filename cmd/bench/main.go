// Command bench measures what the library promises, on a real PostgreSQL, and
// counts that each event is handled exactly once meanwhile. See -h.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/embedded"
)

const usage = `Usage: go run ./cmd/bench [flags]

Measures real workers on a real PostgreSQL and prints a table. Times depend on the
machine, and on what else it does: compare within a run. What does not depend on it
is counted in each scenario: that every committed event was handled exactly once, and
nothing else.

It uses the server that DATABASE_URL names, or starts one of its own, from the binaries
on this machine or from downloaded ones, and removes it. It works in databases that it
creates and drops.

Scenarios:
`

const statuses = `
Exit status: 0 every count was right (a goal that was missed is shown, no error),
1 one was not, 2 wrong usage, no server, or interrupted.

Examples:
  go run ./cmd/bench                        all, some minutes
  go run ./cmd/bench -run rollback,latency  these two
  go run ./cmd/bench -long -markdown docs/performance.md
`

func main() {
	if r := os.Getenv(roleVariable); r != "" {
		os.Exit(work(r))
	}
	command.Main(run)
}

// work is the main function of such a process.
func work(text string) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var r role
	err := json.Unmarshal([]byte(text), &r)
	if err == nil && tasks[r.Task] == nil {
		err = fmt.Errorf("there is no task %q", r.Task)
	}
	if err == nil {
		var found any
		if found, err = tasks[r.Task](ctx, r); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(found)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return command.Error
	}
	return 0
}

// options are what the command line says.
type options struct {
	scenarios []scenario
	long      bool
	markdown  string
	note      string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	if err != nil {
		return command.Refuse("bench", err, stderr)
	}
	r, err := measure(ctx, o, stderr)
	if err == nil {
		err = publish(r, o, stdout)
	}
	if err != nil {
		return command.Fail(ctx, "bench", err, stderr)
	}
	if len(r.broken) > 0 {
		return command.Failed
	}
	return command.OK
}

// parse reads the flags. If help is asked for, it prints that.
func parse(args []string, stdout io.Writer) (o options, err error) {
	f := command.Flags("bench")
	names := f.String("run", "", "`names` of scenarios, with commas between them (default: all)")
	f.BoolVar(&o.long, "long", false, "as long as the scenarios are meant to be, about half an hour")
	f.StringVar(&o.note, "note", "", "a `remark` to print, on what else is to be known of the machine")
	f.StringVar(&o.markdown, "markdown", "", "also write the table to this `file`, and a plot of the ratios beside it, as .svg")
	if err := command.Parse(f, args, stdout, usage+scenarioList()+"\nFlags:\n", statuses); err != nil {
		return o, err
	}
	o.scenarios, err = choose(*names)
	return o, err
}

func scenarioList() (list string) {
	for _, s := range scenarios {
		list += fmt.Sprintf("  %-12s %s\n", s.name, s.about)
	}
	return list
}

// choose finds scenarios by name; none means all.
func choose(names string) (chosen []scenario, err error) {
	if names == "" {
		return scenarios, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-run: there is no scenario %q", name)
		}
		chosen = append(chosen, scenarios[i])
	}
	return chosen, nil
}

// measure runs the scenarios, one after the other, on one server.
func measure(ctx context.Context, o options, stderr io.Writer) (r *report, err error) {
	server, err := embedded.Start(ctx, embedded.Config{OnDisk: true})
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		err = errors.Join(err, server.Stop(ctx))
	}()
	fmt.Fprintf(stderr, "PostgreSQL %s: %s\n", server.Version(), server.Source())
	l := &lab{server: server, size: usual}
	if o.long {
		l.size = long
	}
	r, err = newReport(ctx, l, o.long, o.note)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for _, s := range o.scenarios {
		began := time.Now()
		fmt.Fprintf(stderr, "%-12s ", s.name)
		rows, err := s.run(ctx, l)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.add(s.name, rows, err)
		fmt.Fprintf(stderr, "%5.1f s\n", time.Since(began).Seconds())
	}
	r.loadAfter = loadAverage()
	return r, nil
}

// publish writes the report to wherever it is wanted.
func publish(r *report, o options, stdout io.Writer) error {
	if err := r.writeText(stdout); err != nil || o.markdown == "" {
		return err
	}
	var page strings.Builder
	if err := r.writeMarkdown(&page, filepath.Base(plotName(o.markdown))); err != nil {
		return err
	}
	var plot strings.Builder
	if err := r.writePlot(&plot); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(o.markdown, []byte(page.String()), 0o644),
		os.WriteFile(plotName(o.markdown), []byte(plot.String()), 0o644))
}
