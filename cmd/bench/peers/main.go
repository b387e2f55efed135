// Command peers measures package jobs beside River, on the same PostgreSQL
// server in the same run, and counts that each job runs exactly once. See -h.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/embedded"
)

const usage = `Usage: go run . [flags], in cmd/bench/peers

Measures River and package jobs of this module on one PostgreSQL server, in turns, and
prints a table: a row for each scenario and its settings, with both and their ratio.
Times depend on the machine and on what else it does: trust the ratios. Each run also
counts that every job ran exactly once and is completed in the tables; a wrong count
fails the command.

It starts a server of its own with fsync on, from the binaries on this machine or from
downloaded ones, and removes it; or it uses the one that DATABASE_URL names. Each run has
a new database, is vacuumed and follows a CHECKPOINT, so that neither pays for the other.

Scenarios:
`

const statuses = `
Exit status: 0 every count was right, 1 one was not, 2 wrong usage, no server, or
interrupted.

Examples:
  go run .                                   all, about fifteen minutes
  go run . -only noop -slots 100 -rounds 5   one scenario, more often
  go run . -only tx -rounds 1 -statements    what each sends to the server
  go run . -only noop -rounds 1 -profile .   CPU profiles of the clients
`

func main() { command.Main(run) }

// options are what the command line says.
type options struct {
	scenarios  []scenario
	jobs       int
	slots      []int
	rounds     int
	conns      int
	statements bool
	profile    string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	if err != nil {
		return command.Refuse("peers", err, stderr)
	}
	r, err := measure(ctx, o, stderr)
	if r != nil && ctx.Err() == nil {
		err = errors.Join(r.write(stdout), err)
	}
	if err != nil {
		return command.Fail(ctx, "peers", err, stderr)
	}
	if len(r.broken) > 0 {
		return command.Failed
	}
	return command.OK
}

// parse reads the flags. If help is asked for, it prints that.
func parse(args []string, stdout io.Writer) (o options, err error) {
	f := command.Flags("peers")
	only := f.String("only", "", "`names` of scenarios, with commas between them (default: all)")
	f.IntVar(&o.jobs, "jobs", 100_000, "`number` of jobs of a run of noop or bulk; tx has a tenth")
	slots := f.String("slots", "100,1000", "`numbers` of handlers at a time, with commas between them")
	f.IntVar(&o.rounds, "rounds", 3, "`number` of times that each side runs, in turns; the table has medians")
	f.IntVar(&o.conns, "conns", 20, "`number` of connections in each side's pool")
	f.BoolVar(&o.statements, "statements", false, "also print what each side sends to the server for a job; the server's view of it costs speed")
	f.StringVar(&o.profile, "profile", "", "write a CPU profile of each side's first run into this `directory`")
	if err := command.Parse(f, args, stdout, usage+scenarioList()+"\nFlags:\n", statuses); err != nil {
		return o, err
	}
	if o.jobs < 10 || o.rounds < 1 || o.conns < 4 {
		return o, errors.New("-jobs must be at least 10, -rounds 1, -conns 4")
	}
	if o.slots, err = numbers(*slots); err != nil {
		return o, err
	}
	o.scenarios, err = choose(*only)
	return o, err
}

// numbers reads the value of -slots.
func numbers(list string) (all []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 10_000 {
			return nil, fmt.Errorf("-slots: %q is no number from 1 to 10000", text)
		}
		all = append(all, n)
	}
	return all, nil
}

func scenarioList() (list string) {
	for _, s := range scenarios {
		list += fmt.Sprintf("  %-8s %s\n", s.name, s.about)
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
			return nil, fmt.Errorf("-only: there is no scenario %q", name)
		}
		chosen = append(chosen, scenarios[i])
	}
	return chosen, nil
}

// measure runs the scenarios on one server. The report holds what was measured
// until an error.
func measure(ctx context.Context, o options, stderr io.Writer) (r *report, err error) {
	server, err := embedded.Start(ctx, embedded.Config{OnDisk: true, Settings: settings(o)})
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		err = errors.Join(err, server.Stop(ctx))
	}()
	fmt.Fprintf(stderr, "PostgreSQL %s: %s\n", server.Version(), server.Source())
	l := &lab{server: server, options: o, stderr: stderr}
	if r, err = newReport(ctx, l); err != nil {
		return nil, err
	}
	for _, s := range o.scenarios {
		for _, g := range s.groups(o) {
			if err := r.measure(ctx, l, s.name, g); err != nil {
				return r, err
			}
		}
	}
	r.loadAfter = loadAverage()
	return r, nil
}

// measure runs the contestants of a group in turns, until one fails. Which one
// begins changes from round to round.
func (r *report) measure(ctx context.Context, l *lab, scenario string, g group) error {
	measured := block{scenario: scenario, group: g, results: make([][]result, len(g.contestants))}
	defer func() { r.blocks = append(r.blocks, measured) }()
	for round := range l.options.rounds {
		for i := range g.contestants {
			i = (i + round) % len(g.contestants)
			c := g.contestants[i]
			began := time.Now()
			name := fmt.Sprintf("%s, %s, %s %s, round %d of %d", scenario, g.about, c.side.name, c.way, round+1, l.options.rounds)
			debug.FreeOSMemory() // none pays for another's garbage
			result, err := l.run(ctx, g, c, round, name)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				fmt.Fprintf(l.stderr, "%s: %v\n", name, err)
				r.broken = append(r.broken, fmt.Sprintf("%s: %v", name, err))
				return nil
			}
			measured.results[i] = append(measured.results[i], result)
			fmt.Fprintf(l.stderr, "%s: %s (%.1f s)\n", name, result.text(), time.Since(began).Seconds())
		}
	}
	return nil
}
