package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/oracle"
)

const usage = `Usage: go run ./cmd/sim [flags]

Runs real workers against a real PostgreSQL while writers append events in every
way that applications do: concurrently, with conflicts, rolled back, in savepoints,
prepared, and committed late. Workers crash in the middle of a batch and at its
COMMIT, vanish with their connections half open, stall and come back as zombies,
are cut off, are restarted, and have their consumers moved away under their hands.
The server crashes and recovers, and takes back what was committed asynchronously.
Notifications get lost. Operators set consumers back and forward.
Each consumer writes every event that it handles into a ledger, in the
transaction that it is given. In the end an oracle compares the ledgers of the
writers with the log, the ledger, the checkpoints and the audit of skipped
positions.

Without -db it uses the server that DATABASE_URL names, or starts one of its own,
from the binaries on this machine or from downloaded ones, and removes it. It works
in a database that it creates and drops. Only a server of its own is crashed.

The seed decides the settings, which faults strike how often, and what each actor
does, not how server and scheduler interleave it: what broke once may take a few
tries to break again.

A run that breaks an invariant is kept in the directory ./sim-failure-<seed>, of
several runs the first five: a README.txt, all that happened, the evidence, the
server's log, and a picture. The oracle judges it again with -check, and -reduce
searches for a smaller run that fails.

Flags:
`

const statuses = `
Exit status:
  0  all invariants held
  1  one was broken, or in 20 runs and more a fault that was on, or a state that it
     leads to, never came, though the runs that could have it were made again
  2  wrong usage, no server to begin with, or interrupted
  3  nothing was broken, and the run was not judged: the harness itself could not do
     its part, though it tried a second time with twice the time. Of several runs,
     more than one in ten; of recorded seeds, one

Examples:
  go run ./cmd/sim                          half a minute, everything on
  go run ./cmd/sim -workers 5 -writers 20   the same, said aloud
  go run ./cmd/sim -runs 20 -duration 10s   twenty seeds, and their sum
  go run ./cmd/sim -jobs                    the same for jobs
  go run ./cmd/sim -seeds sim/seeds.txt     the recorded seeds, and their sum
  go run ./cmd/sim -seed 7 -json | jq .     for a program to read
  go run ./cmd/sim -check sim-failure-7     judge what was kept
  go run ./cmd/sim -seed 7 -reduce 5m       the smallest run like it that fails
`

// options are what the command line says.
type options struct {
	config sim.Config
	db     string
	runs   int
	json   bool

	history, report string        // files
	seeds           []recorded    // in place of config
	keep            string        // directory for every run's bundle
	check           string        // directory of a bundle
	reduce          time.Duration // for how long
}

// parse reads the flags. If help is asked for, it prints that.
func parse(args []string, stdout io.Writer) (options, error) {
	o := options{config: sim.DefaultConfig(), runs: 1}
	f := command.Flags("sim")
	read := runFlags(f, &o.config)
	f.IntVar(&o.runs, "runs", o.runs, "repeat with `n` successive seeds and sum up")
	seeds := f.String("seeds", "", "`file` of recorded seeds: run one after the other, of events and of jobs, and sum up. A line has flags of one run, then # and what it is for; allowed are "+names(f, "runs"))
	f.StringVar(&o.db, "db", "", "`connection string` of a server on which to create a database")
	f.StringVar(&o.keep, "keep", "", "`directory` in which to keep every run, also those that held")
	f.StringVar(&o.check, "check", "", "`directory` of a run that was kept: judge it again, without workers or a database")
	f.DurationVar(&o.reduce, "reduce", 0, "search for that long for a smaller run that fails, starting from this one")
	f.StringVar(&o.history, "history", "", "`file` for all that happened, one JSON object to a line; of several runs the first that broke, or the last")
	f.StringVar(&o.report, "report", "", "`file` for a picture of the same run: an HTML page that needs no network")
	f.BoolVar(&o.json, "json", false, "print one JSON object; progress goes to stderr as always")
	err := command.Parse(f, args, stdout, usage, faultList()+jobsUsage+jobFaultList()+statuses)
	if err != nil {
		return o, err
	}
	if err := o.agree(command.Given(f)); err != nil {
		return o, err
	}
	if *seeds != "" {
		o.seeds, err = readSeeds(*seeds)
		return o, err
	}
	return o, read()
}

// runFlags defines the flags of one run. The function that it returns is to be called
// when they are parsed: it reads what the flags say of c, and reports what is wrong.
func runFlags(f *flag.FlagSet, c *sim.Config) (read func() error) {
	f.IntVar(&c.Workers, "workers", c.Workers, "workers at a time, `n` from 1 to 50")
	f.IntVar(&c.Writers, "writers", c.Writers, "writers at a time, `n` from 1 to 200")
	f.IntVar(&c.Consumers, "consumers", c.Consumers, "consumers, `n` from 1 to 50; a third of them want some aggregate types only")
	f.DurationVar(&c.Duration, "duration", c.Duration, "of the part with faults, up to twice that on a slow machine; setting up, copies of the server and coming to rest are added")
	f.BoolVar(&c.Jobs, "jobs", false, "workers of jobs, and enqueuers in place of writers: see below")
	seed := f.String("seed", "", "`number` that decides everything that can be decided (default: drawn, and printed)")
	faults := f.String("faults", "", "`name=intensity,...` of the faults that are on, 1 being the usual intensity; all, or none (default: drawn, and printed)")
	return func() (err error) {
		if c.Jobs && command.Given(f)["consumers"] {
			return errors.New("-consumers is of no use with -jobs")
		}
		if c.Seed, err = command.Seed(*seed); err != nil {
			return err
		}
		if *faults != "" {
			if c.Faults, err = sim.Faults(c.Jobs).Parse(*faults); err != nil {
				return err
			}
		}
		return c.Validate()
	}
}

// names lists flags, those of runFlags if nothing else was defined since.
func names(f *flag.FlagSet, but ...string) string {
	var all []string
	f.VisitAll(func(f *flag.Flag) {
		if !slices.Contains(but, f.Name) {
			all = append(all, "-"+f.Name)
		}
	})
	return strings.Join(all, " ")
}

// agree reports flags that are out of range, or of no use together.
func (o options) agree(given map[string]bool) error {
	if o.runs < 1 {
		return fmt.Errorf("-runs %d is out of range, allowed is 1 and more", o.runs)
	}
	if given["reduce"] && o.reduce <= 0 {
		return fmt.Errorf("-reduce %v is out of range, allowed is more than 0, as in -reduce 5m", o.reduce)
	}
	for _, m := range modes {
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if given[m.flag] && name != m.flag && !slices.Contains(m.with, name) {
				return fmt.Errorf("-%s is of no use with -%s; what is: -%s", name, m.flag, strings.Join(m.with, ", -"))
			}
		}
	}
	return nil
}

// modes are the flags that do something else than to run, and the flags that
// they go with.
var modes = []struct {
	flag string
	with []string
}{
	{"check", []string{"history", "report", "json"}},
	{"seeds", []string{"db", "keep", "history", "report", "json"}},
	{"reduce", []string{"jobs", "seed", "faults", "workers", "writers", "consumers", "duration", "db", "keep"}},
}

func faultList() string { return listOf("Faults:", sim.Faults(false).Lines()) }

func jobFaultList() string { return listOf("Faults with -jobs:", sim.Faults(true).Lines()) }

func listOf(title string, lines []oracle.Line) string {
	list := "\n" + title + "\n"
	for _, l := range lines {
		list += fmt.Sprintf("  %-13s %s\n", l.Name, l.Value)
	}
	return list
}

const jobsUsage = `
With -jobs, enqueuers commit jobs, roll them back, commit them late, and lose the
answer; workers run them with handlers of all sorts, which fail, panic and hang.
Workers crash, stop, and are cut off from the server at a claim, as they store what
became of a job, and at their COMMIT. Operators pause and cap queues and cancel
jobs. Event consumers enqueue jobs, and are set back. In the end the oracle compares the ledgers of enqueuers and handlers with the
tables of jobs, and with every step of each job that a trigger has written down.
`
