// Command mutants plants mistakes in the protocol, one at a time, and lets the
// sim find them. See -h.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/planted"
)

// The exit statuses.
const (
	exitCaught = 0
	exitMissed = 1
	exitError  = 2
)

const usage = `Usage: go run ./cmd/mutants [flags]

Plants mistakes in the protocol, each one that somebody would really make, and
lets the sim find them. The sources have no switches: each mistake is a small
replacement of their text in a build of its own (go build -overlay), which is
removed in the end. A mistake that no run catches says that the sim is blind
there, or that the design makes it harmless; then the list says why. A few lie
where the sim cannot look: those are for a test, which the list names.

Each run is a short one of cmd/sim, with a server of its own and a seed of its
own, which draws the settings and the faults. For some mistakes a fault is as
intense in all runs as it must be, or seeds are passed over that have not drawn
what the mistake is about: -list and the table name both.

Flags:
`

const statuses = `
Exit status: 0 every mistake was caught or is harmless, 1 one was not,
2 wrong usage, one that could not be planted, no server, or interrupted.

Examples:
  go run ./cmd/mutants                     every mistake, until it is caught
  go run ./cmd/mutants -all -runs 10       in how many of ten runs each is caught
  go run ./cmd/mutants -only head,no-owner two of them
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are what the command line says.
type options struct {
	bugs     []planted.Bug
	runs     int
	duration time.Duration
	all      bool
	list     bool
	seed     uint64
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitCaught
	case err != nil:
		fmt.Fprintf(stderr, "mutants: %v (see -h)\n", err)
		return exitError
	case o.list:
		list(stdout, o.bugs)
		return exitCaught
	}
	results, err := o.hunt(ctx, stderr)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintf(stderr, "mutants: %v\n", err)
		return exitError
	}
	if missed := o.report(stdout, results); missed > 0 {
		return exitMissed
	}
	return exitCaught
}

// parse reads the flags. If help is asked for, it prints that.
func parse(args []string, stdout io.Writer) (o options, err error) {
	f := flag.NewFlagSet("mutants", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	only := f.String("only", "", "`name,...` of the mistakes to plant (default: all)")
	f.IntVar(&o.runs, "runs", 40, "give up on a mistake after `n` runs")
	f.DurationVar(&o.duration, "duration", 4*time.Second, "of the part of a run with faults")
	f.BoolVar(&o.all, "all", false, "go on after a mistake was caught, and count in how many of the runs it is")
	f.BoolVar(&o.list, "list", false, "list the mistakes, and plant none")
	seed := f.String("seed", "", "`number` of the first run of each mistake; the next follow it (default: drawn, and printed)")
	err = f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(stdout)
		fmt.Fprint(stdout, usage)
		f.PrintDefaults()
		fmt.Fprint(stdout, statuses)
	}
	switch {
	case err != nil:
		return o, err
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.runs < 1:
		return o, fmt.Errorf("-runs %d is out of range, allowed is 1 and more", o.runs)
	case o.duration < time.Second:
		return o, fmt.Errorf("-duration %v is out of range, allowed is 1s and more", o.duration)
	}
	o.seed = uint64(rand.Uint32()) // short enough to be typed
	if *seed != "" {
		if o.seed, err = strconv.ParseUint(*seed, 10, 64); err != nil {
			return o, fmt.Errorf("-seed %q is not a number from 0 to 18446744073709551615", *seed)
		}
	}
	o.bugs, err = choose(*only)
	return o, err
}

func choose(only string) (bugs []planted.Bug, err error) {
	all := planted.All()
	if only == "" {
		return all, nil
	}
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(b planted.Bug) bool { return b.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no mistake %q (-list shows all)", name)
		}
		bugs = append(bugs, all[i])
	}
	return bugs, nil
}

func list(w io.Writer, bugs []planted.Bug) {
	for _, b := range bugs {
		fmt.Fprintf(w, "%-18s %s\n", b.Name, b.Mistake)
		for _, line := range conditions(b) {
			fmt.Fprintf(w, "%-18s %s\n", "", line)
		}
	}
}
