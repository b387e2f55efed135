package main

import (
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/pgfrontier/worker/internal/lab/mutants"
)

// String is what became of a mistake, in a line.
func (r result) String() string {
	switch {
	case r.unknown() && r.runs > 0:
		return fmt.Sprintf("NOT JUDGED: %d of %d runs were not", r.no, r.runs+r.no)
	case r.unknown():
		return fmt.Sprintf("NOT JUDGED: none of %d runs was", r.no)
	case r.caught > 0 && r.mutant.Harmless != "":
		return fmt.Sprintf("NOT HARMLESS: caught in %d of %d runs, by %s", r.caught, r.runs, strings.Join(r.broken, ", "))
	case r.caught == 0 && r.mutant.Harmless != "":
		return fmt.Sprintf("harmless, in %d runs", r.runs)
	case r.caught == 0:
		return fmt.Sprintf("NOT CAUGHT in %d runs", r.runs)
	case r.caught == 1 && r.first == r.runs:
		return fmt.Sprintf("caught in run %d, by %s", r.first, strings.Join(r.broken, ", "))
	default:
		return fmt.Sprintf("caught in %d of %d runs, by %s", r.caught, r.runs, strings.Join(r.broken, ", "))
	}
}

// conditions are what the list says of a mistake beside itself.
func conditions(m mutants.Mutant) (lines []string) {
	for _, c := range []struct{ name, value string }{{"found by a test", strings.TrimSpace(m.Test.Package + " " + m.Test.Name)}, {"always", always(m)}, {"always drawn", m.Draws}, {"harmless", m.Harmless}} {
		if c.value != "" {
			lines = append(lines, c.name+": "+c.value)
		}
	}
	return lines
}

// always names the faults that are on in every run, and counts those that are off.
func always(m mutants.Mutant) string {
	on, err := parseFaults(m)
	if m.Faults == "" || err != nil {
		return m.Faults // a run says what is wrong with them
	}
	all := len(on)
	maps.DeleteFunc(on, func(_ string, intensity float64) bool { return intensity == 0 })
	if off := all - len(on); off > 0 {
		return fmt.Sprintf("%s (%d others off)", on, off)
	}
	return on.String()
}

// report prints the table, and returns how many mistakes were missed, and of how many too
// few runs were judged.
func (o options) report(w io.Writer, results []result) (missed, unknown int) {
	fmt.Fprintf(w, "\n%-18s %8s  %s\n", "mistake", "seconds", "")
	for _, r := range results {
		fmt.Fprintf(w, "%-18s %8.1f  %s\n", r.mutant.Name, r.seconds, r)
		below := conditions(r.mutant)
		if r.caught > 0 {
			repeat := "repeat: go run ./cmd/mutants -only " + r.mutant.Name
			if r.mutant.Test.Name == "" {
				repeat += fmt.Sprintf(" -runs 1 -duration %v -seed %d", o.duration, r.seed)
			}
			below = append(below, "for example: "+r.example, repeat)
		}
		for _, line := range below {
			fmt.Fprintf(w, "%-18s %8s  %s\n", "", "", line)
		}
		switch {
		case r.missed():
			missed++
		case r.unknown():
			unknown++
		}
	}
	verdict := fmt.Sprintf("all %d mistakes were caught, or are harmless", len(results)-unknown)
	if missed > 0 {
		verdict = fmt.Sprintf("%d of %d mistakes were NOT CAUGHT, or are not harmless", missed, len(results))
	}
	if unknown > 0 {
		verdict += fmt.Sprintf("; %d NOT JUDGED", unknown)
	}
	fmt.Fprintf(w, "\nverdict: %s\n", verdict)
	return missed, unknown
}
