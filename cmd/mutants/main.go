// Command mutants plants mistakes in the protocol, one at a time, and lets the
// sim find them. See -h.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/mutants"
)

const usage = `Usage: go run ./cmd/mutants [flags]

Plants mistakes in the protocol, each one that somebody would really make, and
lets the sim find them. The sources have no switches: each mistake is a small
replacement of their text in a build of its own (go build -overlay), which is
removed in the end. A mistake that no run catches says that the sim is blind
there, or that the design makes it harmless; then the list says why. A few lie
where the sim checks too seldom: those are for a test, which the list names.

Each run is a short one of cmd/sim, with a server of its own and a seed of its
own, which draws the settings and the faults. For some mistakes a fault is as
intense in all runs as it must be, or seeds are passed over that have not drawn
what the mistake is about: -list and the table name both.

Flags:
`

const statuses = `
A run that was not judged, as the harness of cmd/sim could not do its part, has no
result: the next seed takes its place, at most as often as there are runs.

Exit status: 0 every mistake was caught or is harmless, 1 one was not,
2 wrong usage, one that could not be made, no server, or interrupted,
3 the others were caught or are harmless, and of one too few runs were judged.

Examples:
  go run ./cmd/mutants                     every mistake, until it is caught
  go run ./cmd/mutants -all -runs 10       in how many of ten runs each is caught
  go run ./cmd/mutants -only head,no-owner two of them
  go run ./cmd/mutants -sample 20          twenty of them, others each time
`

func main() { command.Main(run) }

// options are what the command line says.
type options struct {
	mutants  []mutants.Mutant
	runs     int
	duration time.Duration
	all      bool
	list     bool
	seed     uint64
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	if err != nil {
		return command.Refuse("mutants", err, stderr)
	}
	if o.list {
		list(stdout, o.mutants)
		return command.OK
	}
	results, err := o.hunt(ctx, stderr)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return command.Fail(ctx, "mutants", err, stderr)
	}
	switch missed, unknown := o.report(stdout, results); {
	case missed > 0:
		return command.Failed
	case unknown > 0:
		return command.NotJudged
	}
	return command.OK
}

// parse reads the flags. If help is asked for, it prints that.
func parse(args []string, stdout io.Writer) (o options, err error) {
	f := command.Flags("mutants")
	only := f.String("only", "", "`name,...` of the mistakes to plant (default: all)")
	f.IntVar(&o.runs, "runs", 40, "give up on a mistake after `n` runs")
	f.DurationVar(&o.duration, "duration", 4*time.Second, "of the part of a run with faults")
	f.BoolVar(&o.all, "all", false, "go on after a mistake was caught, and count in how many of the runs it is")
	f.BoolVar(&o.list, "list", false, "list the mistakes, and plant none")
	sample := f.Int("sample", 0, "plant `n` of them only, which the seed draws; 0: all")
	seed := f.String("seed", "", "`number` of the first run of each mistake; the next follow it (default: drawn, and printed)")
	if err := command.Parse(f, args, stdout, usage, statuses); err != nil {
		return o, err
	}
	switch {
	case o.runs < 1:
		return o, fmt.Errorf("-runs %d is out of range, allowed is 1 and more", o.runs)
	case *sample < 0:
		return o, fmt.Errorf("-sample %d is out of range, allowed is 1 and more, or 0 for all", *sample)
	case o.duration < time.Second:
		return o, fmt.Errorf("-duration %v is out of range, allowed is 1s and more", o.duration)
	}
	if o.seed, err = command.Seed(*seed); err != nil {
		return o, err
	}
	if o.mutants, err = choose(*only); err == nil && *sample > 0 {
		o.mutants = draw(o.mutants, *sample, o.seed)
	}
	return o, err
}

// draw returns n of the mutants, or all if there are fewer, in their order.
func draw(all []mutants.Mutant, n int, seed uint64) (some []mutants.Mutant) {
	chosen := rand.New(rand.NewPCG(seed, 0)).Perm(len(all))[:min(n, len(all))]
	slices.Sort(chosen)
	for _, i := range chosen {
		some = append(some, all[i])
	}
	return some
}

func choose(only string) (chosen []mutants.Mutant, err error) {
	all := mutants.All()
	if only == "" {
		return all, nil
	}
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(m mutants.Mutant) bool { return m.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no mistake %q (-list shows all)", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func list(w io.Writer, chosen []mutants.Mutant) {
	for _, m := range chosen {
		fmt.Fprintf(w, "%-18s %s\n", m.Name, m.Mistake)
		for _, line := range conditions(m) {
			fmt.Fprintf(w, "%-18s %s\n", "", line)
		}
	}
}
