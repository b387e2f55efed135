package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

func (a *app) jobsRetryVerb() *cobra.Command {
	var f ops.JobFilter
	var again bool
	var limit int
	c := a.changes(&cobra.Command{
		Use: "retry {ID | filters}", Short: "run a job again, or those of a filter", Args: cobra.MaximumNArgs(1),
		Long: `Runs a job again. One that waits becomes due now. One that has failed, expired, or was
cancelled becomes a new job, and the old one stays in the history. What would run
twice is refused, unless --again insists: a job that has completed, was retried
before, or is a step of a flow (jobs flows retry).

With filters it runs the finished jobs again that they take, those that failed if they
name no state, and passes over what would be refused.`,
		Example: "  pgfrontier jobs retry 1234 --reason \"the mail server is back\"\n  pgfrontier jobs retry --queue mail --reason \"it is back\" --dry-run",
	})
	states := filteredJobs(c, &f)
	c.RunE = a.verb(func(ctx context.Context, args []string) error {
		if err := states(); err != nil {
			return err
		}
		if err := oneOrFiltered(args, f); err != nil {
			return err
		}
		switch {
		case len(args) == 0 && again:
			return usage("--again is for one job: leave it out, or give an ID")
		case len(args) == 0:
			return a.onJobs(ctx, "retry", "jobs", "Each becomes a new job, which is due now.", func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				did, err := o.RetryAll(ctx, f, limit, by)
				data := changedJobs(&f, did.Jobs, limit)
				data["jobs"], data["new_ids"] = listed(did.Jobs, itself), listed(did.As, itself)
				return data, err
			})
		}
		id, err := jobOf(args[0])
		if err != nil {
			return err
		}
		what, final, retry := "retry", "", (*ops.Jobs).Retry
		if again {
			what, final, retry = "rerun", "What the job did before may be done twice.", (*ops.Jobs).Rerun
		}
		return a.onJobs(ctx, what, args[0], final, func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
			as, err := retry(o, ctx, id, by)
			return object{"new_id": as}, err
		})
	})
	c.Flags().BoolVar(&again, "again", false, "also if it has completed, was retried before, or is a step of a flow")
	c.Flags().IntVar(&limit, "limit", mostShown, "how many at most, 1 to 1000")
	return c
}

// mostShown is how many finished jobs a verb changes unless it is told otherwise: each has a line
// in the preview.
const mostShown = 100

// oneOrFiltered refuses an ID beside filters, and neither of both.
func oneOrFiltered(args []string, f ops.JobFilter) error {
	filters := f.Kind != "" || f.Queue != "" || len(f.States) > 0
	if len(args) == 1 && filters {
		return usage("an ID is one job: leave the filters out")
	}
	if len(args) == 0 && !filters {
		return usage("say which jobs: an ID, or filters")
	}
	return nil
}

// changedJobs shows how many finished jobs were changed. After the preview, the filter takes none
// that has ended since.
func changedJobs(f *ops.JobFilter, ids []int64, limit int) object {
	if len(ids) > 0 {
		f.After, f.Before = slices.Min(ids)-1, slices.Max(ids)+1
	}
	return counted(int64(len(ids)), limit)
}

func (a *app) jobsCancelVerb() *cobra.Command {
	var f ops.JobFilter
	var all bool
	var limit int
	c := a.changes(&cobra.Command{
		Use: "cancel {ID | --all | filters}", Short: "cancel a job, or those of a filter", Args: cobra.MaximumNArgs(1),
		Long:    "Cancels a job, or the unfinished ones that the filters take. One that runs is asked\nto end.",
		Example: "  pgfrontier jobs cancel 1234 --reason \"ordered twice\"\n  pgfrontier jobs cancel --kind welcome --queue mail --reason \"wrong text\" --yes",
	})
	states := filteredJobs(c, &f)
	c.RunE = a.verb(func(ctx context.Context, args []string) error {
		if err := states(); err != nil {
			return err
		}
		filters := f.Kind != "" || f.Queue != "" || len(f.States) > 0
		switch {
		case len(args) == 1 && (filters || all):
			return usage("an ID is one job: leave --all and the filters out")
		case len(args) == 0 && filters == all:
			return usage("say which jobs: an ID, --all, or filters")
		case len(args) == 0:
			if all {
				f.States = []jobs.State{jobs.StateAvailable, jobs.StateRunning}
			}
			return a.onJobs(ctx, "cancel", "jobs", "What is cancelled does not run.", func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				did, err := o.CancelAll(ctx, f, limit, by)
				ids := slices.Concat(did.Cancelled, did.Asked)
				if len(ids) > 0 {
					f.After, f.Before = slices.Min(ids)-1, slices.Max(ids)+1 // after the preview: no job that came since
				}
				data := counted(int64(len(ids)), limit)
				data["cancelled"], data["asked"] = listed(did.Cancelled, itself), listed(did.Asked, itself)
				return data, err
			})
		}
		id, err := jobOf(args[0])
		if err != nil {
			return err
		}
		return a.onJobs(ctx, "cancel", args[0], "What is cancelled does not run.", func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
			now, err := o.Cancel(ctx, id, by)
			return object{"state": now}, err
		})
	})
	c.Flags().BoolVar(&all, "all", false, "all unfinished jobs")
	c.Flags().IntVar(&limit, "limit", 10_000, "how many at most")
	return c
}

func itself(id int64) int64 { return id }

func (a *app) jobsDiscardVerb() *cobra.Command {
	var f ops.JobFilter
	var limit int
	const final = "Its arguments, result and runs are deleted."
	c := a.changes(&cobra.Command{
		Use: "discard {ID | filters}", Short: "delete a finished job from the history, or those of a filter", Args: cobra.MaximumNArgs(1),
		Long:    "Deletes a finished job from the history, or those that the filters take: those that\nfailed if they name no state.",
		Example: "  pgfrontier jobs discard 1234 --reason \"it has personal data\"\n  pgfrontier jobs discard --kind welcome --reason \"nobody needs them\" --dry-run",
	})
	states := filteredJobs(c, &f)
	c.RunE = a.verb(func(ctx context.Context, args []string) error {
		if err := states(); err != nil {
			return err
		}
		if err := oneOrFiltered(args, f); err != nil {
			return err
		}
		if len(args) == 0 {
			return a.onJobs(ctx, "discard", "jobs", final, func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				ids, err := o.DiscardAll(ctx, f, limit, by)
				data := changedJobs(&f, ids, limit)
				data["jobs"] = listed(ids, itself)
				return data, err
			})
		}
		id, err := jobOf(args[0])
		if err != nil {
			return err
		}
		return a.onJobs(ctx, "discard", args[0], final, func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
			return nil, o.Discard(ctx, id, by)
		})
	})
	c.Flags().IntVar(&limit, "limit", mostShown, "how many at most, 1 to 1000")
	return c
}

func (a *app) jobsAcknowledgeVerb() *cobra.Command {
	return a.changes(&cobra.Command{
		Use: "acknowledge QUEUE", Short: "stop the alarms about the failed jobs of a queue that were seen", Args: cobra.ExactArgs(1),
		Long: `Says that the failed jobs of a queue were seen: status, doctor and the console do not
tell of them any more, until another one fails. They stay in the history, and can be
retried and discarded. After the preview, jobs that have failed since are left out;
with --yes, all that have failed are acknowledged.`,
		Example: "  pgfrontier jobs acknowledge mail --reason \"the provider was down\"",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			var shown time.Time // when the last one failed; zero: nothing was shown
			return a.onJobs(ctx, "acknowledge", args[0], "Nothing takes it back.", func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				did, err := o.Acknowledge(ctx, args[0], shown, by)
				shown = did.Through
				data := object{"count": did.Jobs, "through": nil}
				if !did.Through.IsZero() {
					data["through"] = did.Through
				}
				return data, err
			})
		}),
	})
}

func (a *app) jobsPauseVerb() *cobra.Command {
	return a.jobsSwitch("pause", "keep the workers from a queue, or pass a schedule's ticks by", (*ops.Jobs).PauseQueue, (*ops.Jobs).PauseSchedule)
}

func (a *app) jobsResumeVerb() *cobra.Command {
	return a.jobsSwitch("resume", "let a paused queue or schedule go on", (*ops.Jobs).ResumeQueue, (*ops.Jobs).ResumeSchedule)
}

// jobsSwitch is a verb for a queue, or a schedule.
func (a *app) jobsSwitch(name, short string, queue, schedule func(o *ops.Jobs, ctx context.Context, name string, by ops.By) error) *cobra.Command {
	var ofSchedule bool
	c := a.changes(&cobra.Command{
		Use: name + " NAME", Short: short, Args: cobra.ExactArgs(1),
		Long:    "NAME is a queue, or * for all together; with --schedule it is a schedule.",
		Example: fmt.Sprintf("  pgfrontier jobs %s mail --reason \"the mail server\"\n  pgfrontier jobs %s nightly --schedule --reason \"month's end\"", name, name),
		RunE: a.verb(func(ctx context.Context, args []string) error {
			do := queue
			if ofSchedule {
				do = schedule
			}
			return a.onJobs(ctx, name, args[0], "", func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				return nil, do(o, ctx, args[0], by)
			})
		}),
	})
	c.Flags().BoolVar(&ofSchedule, "schedule", false, "NAME is a schedule")
	return c
}

func (a *app) jobsCapVerb() *cobra.Command {
	return a.changes(&cobra.Command{
		Use: "cap QUEUE N|none", Short: "how many jobs of a queue may run at once, over all workers", Args: cobra.ExactArgs(2),
		Example: "  pgfrontier jobs cap mail 10 --reason \"the provider's limit\"\n  pgfrontier jobs cap mail none --reason \"it is gone\"",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil && args[1] != "none" {
				return usage("%q is no cap: it is a number from 0, or none", args[1])
			}
			return a.onJobs(ctx, "cap", args[0], "", func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error) {
				if args[1] == "none" {
					return nil, o.RemoveCap(ctx, args[0], by)
				}
				return nil, o.SetCap(ctx, args[0], n, by)
			})
		}),
	})
}

func (a *app) jobsSchedulesVerb() *cobra.Command {
	return &cobra.Command{
		Use: "schedules", Short: "the schedules, and their next ticks", Args: cobra.NoArgs,
		Long:    "Lists the schedules. One that is overdue, paused or not, is run by no process, or its\njob cannot be enqueued. jobs pause --schedule lets ticks pass without a job.",
		Example: "  pgfrontier jobs schedules",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			return a.readJobs(ctx, func(ctx context.Context, o *ops.Jobs) (object, func() string, error) {
				all, err := o.Schedules(ctx)
				return object{"schedules": listed(all, scheduleObject)}, func() string {
					if len(all) == 0 {
						return "none\n"
					}
					t := newTable("SCHEDULE", "NEXT", "LAST", ">OVERDUE", "~STATE")
					for _, s := range all {
						next, last, state := "-", "-", ""
						if !s.Next.IsZero() {
							next = stamp(s.Next)
						}
						if !s.Last.IsZero() {
							last = stamp(s.Last)
						}
						if s.Paused != nil {
							state = pausedSince(*s.Paused)
						}
						t.row(s.Name, next, last, short(s.Overdue), state)
					}
					return t.String()
				}, err
			})
		}),
	}
}

// pausedSince says since when something is paused and, if that is known, by whom and why.
func pausedSince(p ops.Pause) string {
	if p.By.Operator == "" {
		return "paused since " + stamp(p.Since)
	}
	return fmt.Sprintf("paused by %s since %s: %s", p.By.Operator, stamp(p.Since), p.By.Reason)
}

func scheduleObject(s ops.ScheduleInfo) object {
	o := object{"name": s.Name, "next": nil, "last": nil, "paused": paused(s.Paused), "overdue_seconds": seconds(s.Overdue)}
	if !s.Next.IsZero() {
		o["next"] = s.Next
	}
	if !s.Last.IsZero() {
		o["last"] = s.Last
	}
	return o
}
