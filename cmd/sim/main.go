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
	"os"
	"os/signal"
	"syscall"

	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/oracle"
)

// The exit statuses.
const (
	exitHeld   = 0
	exitBroken = 1
	exitError  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
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
	files, err := bundle.Create(o.history, o.report)
	if err != nil {
		fmt.Fprintf(stderr, "sim: %v\n", err)
		return exitError
	}
	var reports []*oracle.Report
	switch {
	case o.check != "":
		reports, err = check(o, stdout, stderr)
	case o.reduce > 0:
		reports, err = reduce(ctx, o, stdout, stderr)
	default:
		reports, err = simulate(ctx, o, stdout, stderr)
	}
	if unwritten := files.Write(telling(reports)); unwritten != nil {
		err = errors.Join(err, fmt.Errorf("sim: %w", unwritten))
	}
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

func writeJSON(w io.Writer, reports []*oracle.Report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(struct {
		Total oracle.Total     `json:"total"`
		Runs  []*oracle.Report `json:"runs"`
	}{oracle.Sum(reports), reports})
}
