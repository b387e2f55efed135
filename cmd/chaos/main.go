//go:build unix

// Command chaos runs worker processes on real servers, kills and stops them,
// fills the disk, takes the connections and promotes a replica, and checks that
// no event is lost or applied twice, or no job is lost or ended twice. See -h.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pgfrontier/worker/chaos"
	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/mutants"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/oracle"
)

const usage = `Usage: go run ./cmd/chaos [flags]

Runs worker processes on PostgreSQL servers of its own, while writers append
events as in cmd/sim: concurrently, rolled back, prepared, committed late. Worker
processes are killed and stopped at random moments, and their connections, which
go through a relay, die in silence or lead to a replica that lags. Handlers end the
transaction that they are given. An operator changes how many partitions a
consumer has, and processes are killed in the middle of that. The server is killed
and restarted, loses a backend, runs out of disk and of connections, is set back to
a cold copy, and is replaced by its streaming replica. Writers and half of the
workers find that through a connection string with two hosts, the others through an
address that follows the primary. In the end everything must come to rest within a
bound that is printed, and the oracle of cmd/sim compares the ledgers of the writers
with the log, the ledger, the checkpoints and the audit of skipped positions.

It needs a PostgreSQL installation on this machine, or downloads one; Linux and
root for the full disk (a file system in memory that holds all data, a gigabyte
after half an hour), and pg_basebackup for the replica: what cannot be done is
left out, and the report says why.

The seed decides the settings, the intensities and what each actor does, not how
it all interleaves: what broke once may take a few tries to break again.

Flags:
`

const statuses = `
A run that broke is kept in the directory chaos-failure-SEED.

Exit status:
  0  all invariants held
  1  one was broken, or in ten minutes and more a fault that was on never happened or,
     of events, a state that it leads to
  2  wrong usage, no server to begin with, or interrupted
  3  nothing was broken, and the run was not judged: the harness itself could not do
     its part, though it tried a second time with twice the time

Examples:
  go run ./cmd/chaos                             ten minutes, everything on
  go run ./cmd/chaos -duration 30m -faults all   before a release
  go run ./cmd/chaos -duration 1m -faults promote=1,kill=2 -report out.html
  go run ./cmd/chaos -jobs                       the same for jobs
`

const jobsUsage = `
With -jobs, worker processes run jobs with handlers of all sorts, and enqueuers
take the place of the writers: as in cmd/sim -jobs, with its operators, who pause
and cap queues and cancel jobs. Instead of handlers that end their transaction and
of the cold copy there are deployments: every process is told to end while it runs
jobs, and replaced. The process that leads is killed again and again. Each process
has schedules, too. In the end the oracle compares the ledgers of enqueuers and
handlers with the tables of jobs, and with every step of each job that a trigger
has written down: all that was committed ended once, by its last claim, the jobs of
killed processes went on in time, no cap was exceeded, and nothing is left running.
`

func main() {
	if len(os.Args) == 2 && os.Args[1] == chaos.WorkerArgument {
		os.Exit(chaos.Worker())
	}
	command.Main(run)
}

// options are what the command line says.
type options struct {
	config          chaos.Config
	ahead           bool // the clock of one process
	json            bool
	history, report string // files
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	if err != nil {
		return command.Refuse("chaos", err, stderr)
	}
	program, err := os.Executable()
	if err != nil {
		return command.Fail(ctx, "chaos", err, stderr)
	}
	files, err := bundle.Create(o.history, o.report)
	if err != nil {
		return command.Fail(ctx, "chaos", err, stderr)
	}
	if o.ahead {
		dir, err := os.MkdirTemp("", "chaos-ahead-")
		if err != nil {
			return command.Fail(ctx, "chaos", err, stderr)
		}
		defer func() { _ = os.RemoveAll(dir) }() // at worst it stays
		if o.config.Ahead, err = aheadIn(ctx, dir); err != nil {
			return command.Fail(ctx, "chaos", err, stderr)
		}
	}
	show := command.NewProgress(stderr)
	o.config.Program, o.config.Progress = []string{program, chaos.WorkerArgument}, func(p sim.Progress) { show.Show(o.progress(p)) }
	o.config.Judged = func(r *oracle.Report, logs []bundle.Log) error { return keepFailure(r, logs, stderr) }
	report, err := sim.Judged(func(patience float64) (*oracle.Report, error) {
		o.config.Patience = patience
		report, err := chaos.Run(ctx, o.config)
		show.Done()
		if report != nil && report.Outcome == oracle.NotJudged && patience == 1 {
			fmt.Fprintf(stderr, "seed %d: %s; it is repeated with twice the time\n", report.Seed, report.Verdict)
		}
		return report, err
	})
	if report != nil {
		err = errors.Join(err, o.write(stdout, report))
	}
	if unwritten := files.Write(report); unwritten != nil {
		err = errors.Join(err, fmt.Errorf("chaos: %w", unwritten))
	}
	if err != nil {
		return command.Fail(ctx, "chaos", err, stderr)
	}
	return status(report.Outcome, missing(o.config, report), stderr)
}

// status returns the exit status of a run in which some things never happened that were
// to happen. One that was not judged did not have its time.
func status(outcome oracle.Outcome, never []string, stderr io.Writer) int {
	switch {
	case outcome == oracle.NotJudged:
		return command.NotJudged
	case len(never) > 0:
		fmt.Fprintf(stderr, "chaos: FAILED: what was to happen never did: %s\n", strings.Join(never, ", "))
		return command.Failed
	case outcome != oracle.Held:
		return command.Failed
	}
	return command.OK
}

// aheadIn builds the program of the process whose clock is ahead.
func aheadIn(ctx context.Context, dir string) ([]string, error) {
	root, err := mutants.Root(ctx)
	if err != nil {
		return nil, err
	}
	program, err := mutants.BuildAhead(ctx, root, dir, "./cmd/chaos")
	return []string{program, chaos.WorkerArgument}, err
}

// keepFailure keeps a run that broke.
func keepFailure(r *oracle.Report, logs []bundle.Log, say io.Writer) error {
	if r.Outcome != oracle.Broken {
		return nil
	}
	dir, err := bundle.Keep(fmt.Sprintf("chaos-failure-%d", r.Seed), r, logs...)
	if err == nil {
		fmt.Fprintf(say, "kept:    %s (its README.txt says more)\n", dir)
	}
	return err
}

// missing lists the faults that a run was long enough for and that never
// happened, and of a run of events the states that they lead to.
func missing(c chaos.Config, r *oracle.Report) (names []string) {
	if c.Duration < chaos.Enough {
		return nil
	}
	for _, f := range r.Faults {
		if f.Count == 0 {
			names = append(names, f.Name)
		}
	}
	if c.Jobs {
		return names
	}
	return append(names, oracle.Sum([]*oracle.Report{r}).Unreached...)
}

// parse reads the flags. If help is asked for, it prints that.
func parse(args []string, stdout io.Writer) (options, error) {
	o := options{config: chaos.DefaultConfig()}
	f := command.Flags("chaos")
	f.DurationVar(&o.config.Duration, "duration", o.config.Duration, "of the part with faults; setting up and coming to rest are added")
	f.IntVar(&o.config.Workers, "workers", o.config.Workers, "worker processes at a time, `n` from 1 to 50")
	f.IntVar(&o.config.Writers, "writers", o.config.Writers, "writers at a time, `n` from 1 to 200")
	f.IntVar(&o.config.Consumers, "consumers", o.config.Consumers, "consumers, `n` from 1 to 50; a third of them want some aggregate types only")
	seed := f.String("seed", "", "`number` that decides everything that can be decided (default: drawn, and printed)")
	faults := f.String("faults", "", "`name=intensity,...` of the faults that are on, 1 being the usual intensity; all, or none (default: all, the intensities drawn and printed)")
	f.BoolVar(&o.config.Jobs, "jobs", false, "workers of jobs, and enqueuers in place of writers: see below")
	f.BoolVar(&o.ahead, "ahead", false, "put the clock of the first worker process an hour ahead: builds its program, which takes a minute the first time")
	f.StringVar(&o.history, "history", "", "`file` for all that happened, one JSON object to a line")
	f.StringVar(&o.report, "report", "", "`file` for a picture of the run: an HTML page that needs no network")
	f.BoolVar(&o.json, "json", false, "print one JSON object; progress goes to stderr as always")
	err := command.Parse(f, args, stdout, usage, faultList("Faults:", chaos.FaultTable())+jobsUsage+faultList("Faults with -jobs:", chaos.JobFaultTable())+statuses)
	if err != nil {
		return o, err
	}
	if o.config.Jobs && command.Given(f)["consumers"] {
		return o, errors.New("-consumers is of no use with -jobs")
	}
	if o.config.Seed, err = command.Seed(*seed); err != nil {
		return o, err
	}
	if *faults != "" {
		read := chaos.ParseFaults
		if o.config.Jobs {
			read = chaos.ParseJobFaults
		}
		if o.config.Faults, err = read(*faults); err != nil {
			return o, err
		}
	}
	return o, o.config.Validate()
}

// write prints a report.
func (o options) write(w io.Writer, r *oracle.Report) error {
	if !o.json {
		return r.WriteText(w)
	}
	return command.WriteJSON(w, r)
}

func faultList(title string, lines []oracle.Line) string {
	list := "\n" + title + "\n"
	for _, l := range lines {
		list += fmt.Sprintf("  %-17s %s\n", l.Name, l.Value)
	}
	return list
}

func (o options) progress(p sim.Progress) string {
	if o.config.Jobs {
		return fmt.Sprintf("%6.0fs  %7d jobs enqueued, %7d completed, %5d due", p.Elapsed.Seconds(), p.Appended, p.Handled, p.Lag)
	}
	return fmt.Sprintf("%6.0fs  %7d events appended, %7d handled by every consumer, lag %5d",
		p.Elapsed.Seconds(), p.Appended, p.Handled, p.Lag)
}
