// Command tierlint checks the calls of tier.Long and the list of tests in
// quarantine. It works in the current directory, the top of the repository. See -h.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pgfrontier/worker/internal/command"
)

const usage = `Usage: go run ./internal/lab/tierlint [-skip | -list]

Checks in all modules that each call of tier.Long names a test of its directory that
the quick tier runs, and that each test in ` + quarantineFile + `
exists, is the only one of its name, and came there at most 14 days ago.

Flags:
`

const statuses = `
Exit status: 0 nothing is wrong, 1 something is, 2 wrong usage, or no such files.
`

func main() { command.Main(run) }

func run(_ context.Context, args []string, stdout, stderr io.Writer) int {
	f := command.Flags("tierlint")
	skip := f.Bool("skip", false, "print the argument of go test -skip for the tests in quarantine, or nothing")
	list := f.Bool("list", false, "print the directory and the name of each test in quarantine")
	err := command.Parse(f, args, stdout, usage, statuses)
	if err == nil && *skip && *list {
		err = errors.New("-skip and -list exclude each other")
	}
	if err != nil {
		return command.Refuse("tierlint", err, stderr)
	}
	entries, problems, err := readQuarantine(".")
	if err == nil && !*skip && !*list {
		var tests testFiles
		if tests, err = parseTests("."); err == nil {
			problems = append(problems, tests.lintLong()...)
			problems = append(problems, tests.lintQuarantine(entries, time.Now())...)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "tierlint: %v\n", err)
		return command.Error
	}
	for _, p := range problems {
		fmt.Fprintln(stderr, p)
	}
	if len(problems) > 0 {
		return command.Failed
	}
	switch {
	case *skip:
		fmt.Fprint(stdout, skipPattern(entries))
	case *list:
		for _, e := range entries {
			fmt.Fprintln(stdout, e.dir, e.test)
		}
	}
	return command.OK
}
