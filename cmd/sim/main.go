// Command sim runs real workers against a real PostgreSQL through crashes,
// rollbacks and delayed commits, and checks that no event is lost or applied
// twice. See -h.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/oracle"
)

func main() { command.Main(run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	if err != nil {
		return command.Refuse("sim", err, stderr)
	}
	files, err := bundle.Create(o.history, o.report)
	if err != nil {
		return command.Fail(ctx, "sim", err, stderr)
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
		err = errors.Join(err, writeJSON(stdout, o.sum(reports), reports))
	}
	return status(ctx, o.sum(reports), err, stderr)
}

// status returns the exit status of a campaign, and says why it could not go on. What was
// broken counts, also if the harness could not end it properly. Without a run there was no
// server to begin with.
func status(ctx context.Context, t oracle.Total, err error, stderr io.Writer) int {
	if err != nil {
		failed := command.Fail(ctx, "sim", err, stderr)
		switch {
		case harness.Explain(err) == nil || ctx.Err() != nil || t.Runs == 0:
			return failed
		case t.Outcome == oracle.Broken:
			return command.Failed
		}
		return command.NotJudged
	}
	switch t.Outcome {
	case oracle.Broken:
		return command.Failed
	case oracle.NotJudged:
		return command.NotJudged
	}
	return command.OK
}

func writeJSON(w io.Writer, total oracle.Total, reports []*oracle.Report) error {
	return command.WriteJSON(w, struct {
		Total oracle.Total     `json:"total"`
		Runs  []*oracle.Report `json:"runs"`
	}{total, reports})
}
