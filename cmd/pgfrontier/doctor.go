package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// The levels of a finding.
const (
	levelOK   = "OK"
	levelWarn = "WARN"
	levelFail = "FAIL"
)

// finding is what a check found.
type finding struct {
	Check  string `json:"check"`
	Level  string `json:"level"`
	Says   string `json:"says"`
	Remedy string `json:"remedy,omitempty"`
}

func ok(format string, args ...any) finding {
	return finding{Level: levelOK, Says: fmt.Sprintf(format, args...)}
}

func warn(remedy, format string, args ...any) finding {
	return finding{Level: levelWarn, Says: fmt.Sprintf(format, args...), Remedy: remedy}
}

func fail(remedy, format string, args ...any) finding {
	return finding{Level: levelFail, Says: fmt.Sprintf(format, args...), Remedy: remedy}
}

// patient is what the checks read.
type patient struct {
	view
	db       *sql.DB
	o        *ops.Operator
	jobs     *ops.Jobs
	t        tables.Tables
	names    store.Names
	maxAge   time.Duration
	blockers []ops.Blocker
	sequence string // behind the positions; empty: it was not found
	jobsOnly bool   // there are no tables of consumers
}

// check is one question to a patient.
type check struct {
	name string
	ask  func(p *patient, ctx context.Context) (finding, error)
	jobs bool // it means something where there are jobs only
}

// serverChecks need the database only, and tableChecks that the tables are there.
var (
	serverChecks = []check{
		{"server", (*patient).server, true},
		{"connections", (*patient).connections, true},
		{"proxy", (*patient).proxy, true},
		{"notify", (*patient).notify, true},
		{"row security", (*patient).rowSecurity, true}, // before what reads the tables
		{"tables", (*patient).tables, true},
	}
	tableChecks = []check{
		{"log", (*patient).eventLog, false},
		{"positions", (*patient).positions, false},
		{"sequences", (*patient).sequences, true},
		{"indexes", (*patient).indexes, true},
		{"drift", (*patient).drift, true},
		{"triggers", (*patient).triggers, true},
		{"visibility", (*patient).visibility, false},
		{"transactions", (*patient).transactions, false},
		{"prepared", (*patient).prepared, false},
		{"vacuum", (*patient).vacuum, true},
		{"dead tuples", (*patient).deadTuples, true},
		{"workers", (*patient).alive, false},
		{"leader", (*patient).oneLeader, false},
		{"builds", (*patient).builds, false},
		{"clocks", (*patient).clocks, false},
		{"complaints", (*patient).complaints, false},
		{"owners", (*patient).owners, false},
		{"partitions", (*patient).partitions, false},
		{"versions", (*patient).versions, false},
		{"late", (*patient).lateOnes, false},
		{"errors", (*patient).failures, false},
		{"paused", (*patient).pausedOnes, false},
		{"letters", (*patient).letters, false},
		{"in doubt", (*patient).ranges, false},
		{"jobs", (*patient).jobsTables, true},
		{"job workers", (*patient).jobWorkers, true},
		{"job errors", (*patient).jobErrors, true},
		{"queues", (*patient).queues, true},
		{"unserved", (*patient).unserved, true},
		{"failed jobs", (*patient).failedJobs, true},
		{"schedules", (*patient).schedules, true},
	}
)

func (a *app) doctorVerb() *cobra.Command {
	var maxAge time.Duration
	c := &cobra.Command{
		Use: "doctor", Short: "check the database, the log, the workers and the consumers", Args: cobra.NoArgs,
		Long: `Checks what can be wrong with a deployment, and says what to do about it. It
changes nothing. The exit status is 1 if a check says FAIL. Checks that the role
may not make say so. Where there are tables of jobs only, those of consumers are
left out.`,
		Example: "  pgfrontier doctor\n  pgfrontier doctor -o json",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if maxAge <= 0 {
				return usage("--max-age %v: it is above 0", maxAge)
			}
			found, err := a.examine(ctx, maxAge)
			if err != nil {
				return err
			}
			failed := 0
			for _, f := range found {
				if f.Level == levelFail {
					failed++
				}
			}
			if err := a.print(object{"ok": failed == 0, "checks": found}, func() string { return findings(found) }); err != nil {
				return err
			}
			if failed > 0 {
				return saysNo
			}
			return nil
		}),
	}
	c.Flags().DurationVar(&maxAge, "max-age", 5*time.Minute, "for how long an event may wait, and a transaction be open")
	return c
}

// findings are what the checks say, for people.
func findings(all []finding) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "%-5s %-13s %s\n", f.Level, f.Check, clean(f.Says))
		if f.Remedy != "" {
			fmt.Fprintf(&b, "%19s > %s\n", "", clean(f.Remedy))
		}
	}
	return b.String()
}

// examine asks all checks whose answer means something.
func (a *app) examine(ctx context.Context, maxAge time.Duration) ([]finding, error) {
	p := patient{maxAge: maxAge}
	var err error
	if p.names, err = a.names(); err == nil {
		p.t, err = a.parsed()
	}
	if err == nil {
		p.o, err = a.operator(ctx)
	}
	if err == nil {
		p.jobs, err = a.jobs(ctx)
	}
	if err != nil {
		return nil, err
	}
	p.db = a.db
	found := a.ask(ctx, &p, serverChecks)
	if found[len(found)-1].Level == levelFail {
		return append(found, finding{"the rest", levelWarn, "was not checked, as the tables are not as they should be", ""}), ctx.Err()
	}
	if p.jobsOnly {
		return append(found, a.ask(ctx, &p, slices.DeleteFunc(slices.Clone(tableChecks), func(c check) bool { return !c.jobs }))...), ctx.Err()
	}
	if p.view, err = a.poll(ctx); err == nil && p.fault == nil {
		p.blockers, err = a.blockers(ctx, false)
	}
	if err != nil {
		f := a.unchecked(ctx, &p, err)
		f.Check, f.Level = "reads", levelFail
		return append(found, f), ctx.Err()
	}
	return append(found, a.ask(ctx, &p, tableChecks)...), ctx.Err()
}

func (a *app) ask(ctx context.Context, p *patient, checks []check) (found []finding) {
	for _, c := range checks {
		bounded, cancel := a.bound(ctx)
		f, err := c.ask(p, bounded)
		cancel()
		if err != nil {
			f = a.unchecked(ctx, p, err)
		}
		f.Check = c.name
		found = append(found, f)
	}
	return found
}

// unchecked says why a check could not be made, and what lets it be made.
func (a *app) unchecked(ctx context.Context, p *patient, err error) finding {
	const says = "could not be checked: %v"
	switch {
	case pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege:
		return warn(a.lacking(ctx, p)+"; or run the doctor as the workers' role, if that is another", says, err)
	case pgdriver.IsUndefined(err):
		return fail("see what doctor says of tables and of jobs: some are missing, or of another version", says, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fail("run it again with a longer --timeout; if that does not help, see what the server waits for", says, err)
	}
	return fail("run it again, and see that the server runs", says, err)
}

// lacking says which GRANTs let this role read what the checks read.
func (a *app) lacking(ctx context.Context, p *patient) string {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	grants, err := rights.Missing(ctx, p.db, rights.Reads(p.ourTables()...))
	switch {
	case err != nil || len(grants) == 0:
		return "grant this role what the error names"
	case len(grants) > firstOnes:
		return "grant this role what pgfrontier migrate grants prints for the worker, with --jobs for that of jobs"
	}
	return list(grants)
}
