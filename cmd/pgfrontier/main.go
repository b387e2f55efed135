// Command pgfrontier shows operators how consumers and jobs stand, and changes what
// they may change. It stands on package ops, and needs the database only.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/errtext"
)

func main() {
	command.Main(func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return run(ctx, args, place{
			in: os.Stdin, out: stdout, talk: stderr, getenv: os.Getenv,
			asks: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())),
			live: term.IsTerminal(int(os.Stdout.Fd())),
		})
	})
}

// place is where the command runs.
type place struct {
	in        io.Reader
	out, talk io.Writer // data; and what is said to people
	getenv    func(string) string
	asks      bool // a person is there who answers
	live      bool // out is a terminal
}

// run runs the command, and returns its exit status.
func run(ctx context.Context, args []string, p place) int {
	a := &app{place: p}
	defer a.close()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.talk)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	var status statusError
	if !errors.As(err, &status) { // cobra's own: an unknown verb, flag or number of arguments
		status = statusError{exitUnable, fmt.Errorf("%w (pgfrontier -h shows how it is used)", err)}
	}
	if status.error != nil {
		text := status.Error()
		if ctx.Err() != nil && status.code != exitUnknown {
			text = "interrupted"
		}
		fmt.Fprintf(p.talk, "pgfrontier: %s\n", clean(errtext.Line(text)))
	}
	return status.code
}

// verb makes a command's RunE of a function, whose error becomes an exit status.
func (a *app) verb(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := a.checkFlags(); err != nil {
			return judge(err)
		}
		return judge(do(cmd.Context(), args))
	}
}
