// Command sim runs real workers against a real PostgreSQL through crashes,
// rollbacks and delayed commits, and checks that no event is lost or applied
// twice. See -h.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/embedded"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/oracle"
)

// The exit statuses.
const (
	exitHeld   = 0
	exitBroken = 1
	exitError  = 2
)

const usage = `Usage: go run ./cmd/sim [flags]

Runs real workers against a real PostgreSQL while writers append events in every
way that applications do: concurrently, with conflicts, rolled back, in savepoints,
prepared, and committed late. Workers crash in the middle of a batch and at its
COMMIT, vanish with their connections half open, stall and come back as zombies,
are cut off, are restarted, and have their consumers moved away under their hands.
Each consumer writes every event that it handles into a ledger, in the
transaction that it is given. In the end an oracle compares the books of the
writers with the log, the ledger, the checkpoints and the audit of skipped
positions.

Without -db it uses the server that DATABASE_URL names, or starts one of its own,
from the binaries on this machine or from downloaded ones, and removes it. It works
in a database that it creates and drops.

The seed decides the settings, which faults strike how often, and what each actor does, not how server and
scheduler interleave it: what broke once may take a few tries to break again.

Flags:
`

const statuses = `
Exit status: 0 all invariants held, 1 one was broken, or in 20 runs and more a
fault that was on never happened, 2 wrong usage, no server,
or interrupted.

Examples:
  go run ./cmd/sim                          half a minute, everything on
  go run ./cmd/sim -workers 5 -writers 20   the same, said aloud
  go run ./cmd/sim -runs 20 -duration 10s   twenty seeds, and their sum
  go run ./cmd/sim -seed 7 -json | jq .     for a program to read
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are what the command line says.
type options struct {
	config sim.Config
	db     string
	runs   int
	json   bool

	history, report string // files
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitHeld
	case err != nil:
		fmt.Fprintf(stderr, "sim: %v (see -h)\n", err)
		return exitError
	}
	keep, err := o.files()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitError
	}
	reports, err := simulate(ctx, o, stdout, stderr)
	err = errors.Join(err, keep(reports))
	if o.json && len(reports) > 0 {
		err = errors.Join(err, writeJSON(stdout, reports))
	}
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("sim: interrupted")
		}
		fmt.Fprintln(stderr, err)
		return exitError
	}
	if !oracle.Sum(reports).AllHeld() {
		return exitBroken
	}
	return exitHeld
}

// parse reads the flags. If help is asked for, it prints that.
func parse(args []string, stdout io.Writer) (options, error) {
	o := options{config: sim.DefaultConfig(), runs: 1}
	f := flag.NewFlagSet("sim", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&o.config.Workers, "workers", o.config.Workers, "workers at a time, `n` from 1 to 50")
	f.IntVar(&o.config.Writers, "writers", o.config.Writers, "writers at a time, `n` from 1 to 200")
	f.IntVar(&o.config.Consumers, "consumers", o.config.Consumers, "consumers, `n` from 1 to 50; a third of them want some aggregate types only")
	f.DurationVar(&o.config.Duration, "duration", o.config.Duration, "of the part with faults, up to twice that on a slow machine; setting up and coming to rest are added")
	seed := f.String("seed", "", "`number` that decides everything that can be decided (default: drawn, and printed)")
	faults := f.String("faults", "", "`name=intensity,...` of the faults that are on, 1 being the usual intensity; all, or none (default: drawn, and printed)")
	f.IntVar(&o.runs, "runs", o.runs, "repeat with `n` successive seeds and sum up")
	f.StringVar(&o.db, "db", "", "`connection string` of a server on which to create a database")
	f.StringVar(&o.history, "history", "", "`file` for all that happened, one JSON object to a line; of several runs the first that broke, or the last")
	f.StringVar(&o.report, "report", "", "`file` for a picture of the same run: an HTML page that needs no network")
	f.BoolVar(&o.json, "json", false, "print one JSON object; progress goes to stderr as always")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(stdout)
		fmt.Fprint(stdout, usage)
		f.PrintDefaults()
		writeFaults(stdout)
		fmt.Fprint(stdout, statuses)
	}
	if err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.runs < 1 {
		return o, fmt.Errorf("-runs %d is out of range, allowed is 1 and more", o.runs)
	}
	o.config.Seed = uint64(rand.Uint32()) // short enough to be typed
	if *seed != "" {
		if o.config.Seed, err = strconv.ParseUint(*seed, 10, 64); err != nil {
			return o, fmt.Errorf("-seed %q is not a number from 0 to 18446744073709551615", *seed)
		}
	}
	if *faults != "" {
		if o.config.Faults, err = sim.ParseFaults(*faults); err != nil {
			return o, err
		}
	}
	return o, o.config.Validate()
}

func writeFaults(w io.Writer) {
	fmt.Fprintln(w, "\nFaults:")
	for _, l := range sim.FaultTable() {
		fmt.Fprintf(w, "  %-10s %s\n", l.Name, l.Value)
	}
}

// simulate makes the runs on one server.
func simulate(ctx context.Context, o options, stdout, stderr io.Writer) (reports []*oracle.Report, err error) {
	server, err := embedded.Start(ctx, embedded.Config{URL: o.db, Settings: map[string]string{
		"max_connections": strconv.Itoa(100 + 2*o.config.Connections()),
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, server.Stop(ctx))
	}()
	fmt.Fprintf(stderr, "PostgreSQL %s: %s\n", server.Version(), server.Source())
	show := newDisplay(stderr)
	for i := range o.runs {
		c := o.config
		c.URL, c.Seed, c.Progress = server.URL(""), o.config.Seed+uint64(i), show.progress
		report, err := sim.Run(ctx, c)
		show.done()
		if report != nil {
			report.Repeat += repeatOn(o.db)
			reports = append(reports, report)
			if !o.json {
				err = errors.Join(err, write(stdout, report, o.runs > 1))
			}
		}
		if err != nil {
			return reports, err
		}
	}
	if o.runs > 1 && !o.json {
		err = oracle.Sum(reports).WriteText(stdout)
	}
	return reports, err
}

// repeatOn is the -db of the command that repeats a run. It may hold a
// password, so it is not printed.
func repeatOn(db string) string {
	if db == "" {
		return ""
	}
	return " -db ..."
}

// write prints a report; one of several that held takes one line.
func write(w io.Writer, r *oracle.Report, oneOfSeveral bool) error {
	if oneOfSeveral && r.Held {
		_, err := fmt.Fprintf(w, "seed %d: %s, in %.1fs\n", r.Seed, r.Verdict, r.Seconds)
		return err
	}
	return r.WriteText(w)
}

func writeJSON(w io.Writer, reports []*oracle.Report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(struct {
		Total oracle.Total     `json:"total"`
		Runs  []*oracle.Report `json:"runs"`
	}{oracle.Sum(reports), reports})
}
