package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/oracle"
)

// recorded is a line of a file of seeds.
type recorded struct {
	at     string // file:line
	flags  string // as typed
	reason string // what the seed is for
	config sim.Config
}

// readSeeds reads a file of recorded seeds. An error names file and line.
func readSeeds(file string) ([]recorded, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-seeds: %w", err)
	}
	return parseSeeds(file, string(text))
}

// parseSeeds parses lines of flags, each with " # " and a reason after them. Blank lines,
// and lines that begin with #, are comments.
func parseSeeds(file, text string) (all []recorded, err error) {
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		l := recorded{at: fmt.Sprintf("%s:%d", file, i+1)}
		if err := l.parse(line); err != nil {
			return nil, fmt.Errorf("%s: %w", l.at, err)
		}
		all = append(all, l)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: there is no seed in it", file)
	}
	return all, nil
}

func (l *recorded) parse(line string) error {
	flags, reason, _ := strings.Cut(line, " # ")
	if l.flags, l.reason = strings.TrimSpace(flags), strings.TrimSpace(reason); l.reason == "" {
		return errors.New(`a seed needs a reason: write " # " and what it is for after its flags`)
	}
	f := command.Flags("sim")
	l.config = sim.DefaultConfig()
	read := runFlags(f, &l.config)
	if err := command.Parse(f, strings.Fields(l.flags), io.Discard, "", ""); err != nil {
		return fmt.Errorf("%w; allowed are %s", err, names(f))
	}
	if !command.Given(f)["seed"] {
		return errors.New("there is no -seed")
	}
	return read()
}

func (l recorded) String() string {
	return fmt.Sprintf("%s: go run ./cmd/sim %s # %s", l.at, l.flags, l.reason)
}

// nameLines prints the lines of the runs that did not hold. Without lines there is nothing to print.
func nameLines(w io.Writer, lines []recorded, reports []*oracle.Report) (err error) {
	for i, l := range lines {
		if r := reports[i]; !r.Held {
			_, wrong := fmt.Fprintf(w, "%s: %v\n", strings.ToUpper(string(r.Outcome)), l)
			err = errors.Join(err, wrong)
		}
	}
	return err
}
