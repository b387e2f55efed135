package command

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
	"strings"
	"syscall"
)

// The exit statuses.
const (
	OK        = 0 // also after -h
	Failed    = 1 // the command did its work, and found something wrong
	Error     = 2 // wrong usage, or the command could not begin its work, or was interrupted
	NotJudged = 3 // nothing wrong was found, and the command could not do all of its work
)

// Main runs a command with the arguments of this process, and ends the process
// with the status that run returns. ctx ends at the first interrupt; a second
// one kills.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Flags returns a set of flags for Parse.
func Flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard) // the caller prints
	return f
}

// Parse reads flags, and takes no other arguments. If help is asked for, it
// prints the list of flags between two texts, and returns flag.ErrHelp.
func Parse(f *flag.FlagSet, args []string, stdout io.Writer, before, after string) error {
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, before)
		f.SetOutput(stdout)
		f.PrintDefaults()
		fmt.Fprint(stdout, after)
		return err
	case err != nil:
		return err
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return nil
}

// Given are the names of the flags that were given.
func Given(f *flag.FlagSet) map[string]bool {
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return given
}

// Refuse returns the status of a command whose flags could not be read, and says
// why unless help was asked for.
func Refuse(name string, err error, stderr io.Writer) int {
	if errors.Is(err, flag.ErrHelp) {
		return OK
	}
	fmt.Fprintf(stderr, "%s: %v (see -h)\n", name, err)
	return Error
}

// Fail returns the status of a command that could not do its work, and says why.
// If ctx has ended, it was interrupted.
func Fail(ctx context.Context, name string, err error, stderr io.Writer) int {
	text := err.Error()
	if ctx.Err() != nil {
		text = "interrupted"
	}
	fmt.Fprintf(stderr, "%s: %s\n", name, strings.TrimPrefix(text, name+": "))
	return Error
}

// Seed parses the text of -seed. For an empty text it draws a seed, short enough to be typed.
func Seed(text string) (uint64, error) {
	if text == "" {
		return uint64(rand.Uint32()), nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("-seed %q is not a number from 0 to 18446744073709551615", text)
	}
	return seed, nil
}

// WriteJSON prints v for programs and people.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
