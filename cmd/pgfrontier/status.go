package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/errtext"
)

func (a *app) statusVerb() *cobra.Command {
	var watch, check bool
	var every, maxAge time.Duration
	var c *cobra.Command
	c = &cobra.Command{
		Use: "status", Short: "the log, the workers and all consumers", Args: cobra.NoArgs,
		Long: `Shows how far the log is, and how all consumers stand: behind counts the
positions up to the head of the log, oldest is how long the first event above the
consumer's position has been waiting, dead counts its dead letters. A consumer is
unowned if no worker has it, and silent if the one that has it has not been heard
of for 30s. What is wrong besides is a line each: what workers complain of, a server
that is a standby, and where there are jobs, queues that are paused, jobs that have
been due for five minutes, whose queue no worker serves, or that have failed for
good, schedules that are paused or overdue by five minutes, and runs of flows that
no worker advances. With -w it shows that again and again, with positions a second since
the poll before.

--check answers with the exit status: 1 if an event has been waiting for a
consumer for longer than --max-age, paused or not, if a transaction has held
the log back for as long, or if the log has a fault that stops all consumers.`,
		Example: `  pgfrontier status
  pgfrontier status -w
  pgfrontier status --check --max-age 5m
  pgfrontier status -o json`,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			switch {
			case !check && c.Flags().Changed("max-age"):
				return usage("--max-age goes with --check")
			case !watch && c.Flags().Changed("every"):
				return usage("--every goes with -w")
			case check && watch:
				return usage("--check answers once: leave -w out")
			case check && maxAge <= 0:
				return usage("--max-age %v: it is above 0", maxAge)
			case every < 100*time.Millisecond:
				return usage("--every %v: it is at least 100ms", every)
			case check:
				return a.check(ctx, maxAge)
			case watch:
				return a.watch(ctx, every)
			}
			v, err := a.pollAll(ctx)
			if err != nil {
				return err
			}
			return a.print(v.object(), v.text)
		}),
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVarP(&watch, "watch", "w", false, "again and again, until Ctrl-C")
	f.DurationVar(&every, "every", 2*time.Second, "how often, with -w")
	f.BoolVar(&check, "check", false, "exit with 1 if something is late")
	f.DurationVar(&maxAge, "max-age", 5*time.Minute, "what late is, with --check")
	return c
}

// watch shows the view until ctx ends, which is no error. A database that is away is
// asked again.
func (a *app) watch(ctx context.Context, every time.Duration) error {
	var last *view
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		v, err := a.pollAll(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && last == nil:
			return err
		case err != nil:
			a.say("pgfrontier: %s", errtext.Line(err.Error()))
		default:
			v.after(last)
			last = &v
			if a.live && a.output == "table" {
				fmt.Fprint(a.out, "\x1b[H\x1b[2J")
			}
			if err := a.print(v.object(), v.text); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (a *app) check(ctx context.Context, maxAge time.Duration) error {
	v, err := a.poll(ctx)
	if err != nil {
		return err
	}
	reasons := v.late(maxAge)
	err = a.print(object{"ok": len(reasons) == 0, "reasons": listed(reasons, func(s string) string { return s })}, func() string {
		if len(reasons) == 0 {
			return "ok\n"
		}
		return strings.Join(listed(reasons, clean), "\n") + "\n"
	})
	if err == nil && len(reasons) > 0 {
		err = saysNo
	}
	return err
}

// typeable are names that mean nothing else to a shell.
var typeable = regexp.MustCompile(`^[\p{L}\p{N}_./:@%+,-]+$`)

// consumerNames completes the name of a consumer.
func (a *app) consumerNames(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
	defer cancel()
	o, err := a.operator(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, _ := o.Consumers(ctx)
	for _, c := range all {
		if typeable.MatchString(c.Name) {
			names = append(names, c.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
