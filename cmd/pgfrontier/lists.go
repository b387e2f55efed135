package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/ops"
)

func (a *app) workersVerb() *cobra.Command {
	return &cobra.Command{
		Use: "workers", Short: "the workers that are registered", Args: cobra.NoArgs,
		Long:    "Shows the workers, the latest heartbeat first, with how many consumers and units\neach runs and has code for, and what it says is wrong. Below are the workers that\nstopped within the last 15 minutes, and how.",
		Example: `  pgfrontier workers`,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			o, err := a.operator(ctx)
			if err != nil {
				return err
			}
			ctx, cancel := a.bound(ctx)
			defer cancel()
			all, err := o.Workers(ctx)
			if err != nil {
				return err
			}
			stopped, err := o.StoppedWorkers(ctx)
			if err != nil {
				return err
			}
			return a.print(workersObject(all, stopped), func() string { return workersTable(all, stopped, complaints) })
		}),
	}
}

// workersTable shows workers, and what each says is wrong.
func workersTable(all []ops.Worker, stopped []ops.StoppedWorker, wrongs func(status json.RawMessage) []string) string {
	if len(all) == 0 {
		return "no worker is registered\n" + stoppedTable(all, stopped)
	}
	t := newTable("WORKER", ">HEARTBEAT", "LEADS", ">RUNS", ">ABLE", "~BUILD")
	wrong := ""
	for _, w := range all {
		leads, able := "", "?"
		if w.Leader && !alarms.IsSilent(w) {
			leads = "leads"
		}
		if w.Able != nil {
			able = fmt.Sprint(len(w.Able))
		}
		t.row(fmt.Sprintf("%s/%d", dash(w.Host), w.PID), short(w.HeartbeatAge), leads, len(w.Consumers), able, dash(w.Build))
		if !w.DrainRequested.IsZero() {
			wrong += clean(fmt.Sprintf("%s/%d: asked to drain at %s", dash(w.Host), w.PID, stamp(w.DrainRequested))) + "\n"
		}
		for _, e := range wrongs(w.Status) {
			wrong += clean(fmt.Sprintf("%s/%d: %s", dash(w.Host), w.PID, e)) + "\n"
		}
	}
	if wrong != "" {
		wrong = "\n" + wrong
	}
	return t.String() + wrong + stoppedTable(all, stopped)
}

// stoppedTable is empty if none has stopped.
func stoppedTable(all []ops.Worker, stopped []ops.StoppedWorker) string {
	if len(stopped) == 0 {
		return ""
	}
	t := newTable("STOPPED", "AT", "HOW", "~BUILD")
	for _, w := range stopped {
		t.row(fmt.Sprintf("%s/%d", dash(w.Host), w.PID), stamp(w.StoppedAt), howStopped(w, all, stopped), dash(w.Build))
	}
	return "\n" + t.String()
}

// howStopped is how a worker stopped, for people.
func howStopped(w ops.StoppedWorker, all []ops.Worker, stopped []ops.StoppedWorker) string {
	switch w.How {
	case "stopped":
		return "stopped by its program"
	case "failed":
		return "failed, see its log"
	case "dead":
		return "declared dead by " + nameOf(w.DeclaredBy, all, stopped)
	}
	return w.How
}

// nameOf is where a worker runs or ran, or its id.
func nameOf(id uuid.UUID, all []ops.Worker, stopped []ops.StoppedWorker) string {
	for _, w := range all {
		if w.ID == id {
			return placeOf(w)
		}
	}
	for _, w := range stopped {
		if w.ID == id {
			return fmt.Sprintf("%s/%d", dash(w.Host), w.PID)
		}
	}
	return id.String()
}

func workersObject(all []ops.Worker, stopped []ops.StoppedWorker) object {
	return object{"workers": listed(all, workerObject), "stopped": listed(stopped, func(w ops.StoppedWorker) object {
		return object{"id": w.ID, "host": w.Host, "pid": w.PID, "build": w.Build, "started_at": w.StartedAt, "stopped_at": w.StoppedAt, "how": w.How, "declared_by": owner(w.DeclaredBy)}
	})}
}

// complaints are the errors in what a worker of consumers said of itself.
func complaints(status json.RawMessage) []string {
	return listed(alarms.WorkerErrors(status), func(c alarms.WorkerError) string { return c.Text })
}

// jobsComplaints are the errors and the lost slots in what a worker of jobs said of itself.
func jobsComplaints(status json.RawMessage) []string {
	errs := listed(alarms.JobWorkerErrors(status), func(c alarms.WorkerError) string { return c.Part + ": " + c.Text })
	return append(errs, alarms.LostSlots(status)...)
}

func workerObject(w ops.Worker) object {
	return object{
		"id": w.ID, "host": w.Host, "pid": w.PID, "build": w.Build, "protocol": w.Protocol, "heartbeat_age_seconds": seconds(w.HeartbeatAge),
		"created_at": w.CreatedAt, "drain_requested_at": drainRequested(w), "leader": w.Leader, "able": w.Able, "wishes": wishesObject(w), "consumers": listed(w.Consumers, func(s string) string { return s }), "status": w.Status,
	}
}

// drainRequested is null unless an operator has asked the worker to drain.
func drainRequested(w ops.Worker) any {
	if w.DrainRequested.IsZero() {
		return nil
	}
	return w.DrainRequested
}

// wishesObject is null of a worker that says nothing of partitions.
func wishesObject(w ops.Worker) any {
	if w.Demands == nil {
		return nil
	}
	all := object{}
	for name, wish := range w.Demands {
		all[name] = object{"partitions": wish.Count, "key": wish.Key}
	}
	return all
}

func (a *app) operationsVerb() *cobra.Command {
	var before int64
	var limit int
	c := &cobra.Command{
		Use: "operations [NAME]", Short: "who changed what, when and why", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.consumerNames,
		Long:    "Lists the latest operations on consumers, or on one, the newest first. -o json has\ntheir details.",
		Example: "  pgfrontier operations totals_v1\n  pgfrontier operations --limit 10 -o json",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			name := strings.Join(args, "")
			if len(args) > 0 && name == "" {
				return usage("the consumer's name is empty: leave it out for all operations")
			}
			o, err := a.operator(ctx)
			if err != nil {
				return err
			}
			ctx, cancel := a.bound(ctx)
			defer cancel()
			all, err := o.Operations(ctx, ops.OperationFilter{Consumer: name, Before: before}, limit)
			if err == nil && len(all) == 0 && name != "" && before == 0 {
				err = known(ctx, o, name)
			}
			if err != nil {
				return err
			}
			return a.print(object{"operations": listed(all, operationObject)}, func() string { return operationsTable(all) })
		}),
	}
	c.Flags().SortFlags = false
	c.Flags().Int64Var(&before, "before", 0, "only those with a lower id, for the next page")
	c.Flags().IntVar(&limit, "limit", defaultLimit, "how many at most")
	return c
}

func operationsTable(all []ops.Operation) string {
	if len(all) == 0 {
		return "no operation was recorded\n"
	}
	t := newTable(">ID", "AT", "OPERATION", "CONSUMER", "~BY")
	for _, op := range all {
		t.row(op.ID, stamp(op.At), op.Kind, dash(op.Consumer), op.By.Operator+": "+op.By.Reason)
	}
	return t.String()
}

func operationObject(op ops.Operation) object {
	return object{
		"id": op.ID, "consumer": op.Consumer, "operation": op.Kind, "detail": op.Detail,
		"operator": op.By.Operator, "reason": op.By.Reason, "at": op.At,
	}
}

func (a *app) gapsVerb() *cobra.Command {
	var f ops.GapFilter
	var limit int
	c := &cobra.Command{
		Use: "gaps NAME", Short: "the positions without an event that a consumer passed", Args: cobra.ExactArgs(1), ValidArgsFunction: a.consumerNames,
		Long:    "Lists the ranges of positions without an event that a consumer went past, the\nnewest first: void if no event can appear there, open while one can, late if one\nhas appeared and was handled.",
		Example: "  pgfrontier gaps totals_v1\n  pgfrontier gaps totals_v1 --open",
		RunE: a.verb(func(ctx context.Context, args []string) error {
			o, err := a.operator(ctx)
			if err != nil {
				return err
			}
			ctx, cancel := a.bound(ctx)
			defer cancel()
			all, err := o.Gaps(ctx, args[0], f, limit)
			if err == nil && len(all) == 0 {
				err = known(ctx, o, args[0])
			}
			if err != nil {
				return err
			}
			return a.print(object{"gaps": listed(all, gapObject)}, func() string { return gapsTable(all) })
		}),
	}
	c.Flags().SortFlags = false
	c.Flags().BoolVar(&f.OnlyOpen, "open", false, "only those where an event can still appear")
	c.Flags().Int64Var(&f.Before, "before", 0, "only those with a lower id, for the next page")
	c.Flags().IntVar(&limit, "limit", defaultLimit, "how many at most")
	return c
}

func gapsTable(all []ops.Gap) string {
	if len(all) == 0 {
		return "none\n"
	}
	t := newTable(">ID", ">FIRST", ">LAST", ">MISSING", "STATE", "SEEN", "~BY")
	for _, g := range all {
		by := g.Worker.String()
		if g.Worker == uuid.Nil {
			by = "an operator"
		}
		t.row(g.ID, g.First, g.Last, g.Missing, g.State, stamp(g.FirstSeenAt), by)
	}
	return t.String()
}

func gapObject(g ops.Gap) object {
	return object{
		"id": g.ID, "consumer": g.Consumer, "worker": owner(g.Worker), "first": g.First, "last": g.Last, "missing": g.Missing,
		"state": g.State, "skipped_to": g.SkippedTo, "first_seen_at": g.FirstSeenAt, "closed_at": g.ClosedAt,
	}
}
