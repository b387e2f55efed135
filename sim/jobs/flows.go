package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// flows are the flows that enqueuers start runs of: one with many steps side by side,
// one with ways around what fails, and one with lists.
var flows = []history.Flow{
	{Name: "fan", Steps: []history.FlowStep{
		{Name: "a", Kind: "plain", Queue: "default"}, {Name: "b", Kind: "tx", Queue: "default"}, {Name: "c", Kind: "batch", Queue: "mail"},
		{Name: "d", Kind: "plain", Queue: "default", Optional: true}, {Name: "e", Kind: "tx", Queue: "mail"},
		{Name: "join", Kind: "tx", Queue: "default", After: on(history.OnSuccess, 0, 1, 2, 3, 4)},
	}},
	{Name: "ways", Steps: []history.FlowStep{
		{Name: "first", Kind: "plain", Queue: "default"}, {Name: "second", Kind: "tx", Queue: "mail"}, {Name: "third", Kind: "complete", Queue: "default"},
		{Name: "any", Kind: "tx", Queue: "default", After: on(history.OnSuccess, 0, 1), Quorum: 1},
		{Name: "two", Kind: "plain", Queue: "mail", After: on(history.OnSuccess, 0, 1, 2), Quorum: 2},
		{Name: "rescue", Kind: "tx", Queue: "default", After: on(history.OnFailure, 4)},
		{Name: "either", Kind: "batchtx", Queue: "default", After: on(history.OnSuccess, 4, 5), Quorum: 1},
		{Name: "clean", Kind: "plain", Queue: "default", After: on(history.OnEnd, 2, 3)},
	}},
	{Name: "lists", Steps: []history.FlowStep{
		{Name: "list", Kind: "list", Queue: "default"},
		{Name: "each", Kind: "plain", Queue: "default", After: on(history.OnSuccess, 0), Map: true},
		{Name: "some", Kind: "plain", Queue: "mail", After: on(history.OnSuccess, 0), Map: true, Quorum: 2, Optional: true},
		{Name: "many", Kind: "tx", Queue: "default", After: []history.FlowEdge{{Step: 0, On: history.OnSuccess, Least: 3}}},
		{Name: "sum", Kind: "tx", Queue: "default", After: on(history.OnSuccess, 1, 2)},
		{Name: "sorry", Kind: "plain", Queue: "mail", After: on(history.OnFailure, 1)},
	}},
}

// on are edges to some steps.
func on(condition string, steps ...int) (all []history.FlowEdge) {
	for _, s := range steps {
		all = append(all, history.FlowEdge{Step: s, On: condition})
	}
	return all
}

func flowNames() (all []string) {
	for _, f := range flows {
		all = append(all, fmt.Sprintf("%s (%d steps)", f.Name, len(f.Steps)))
	}
	return all
}

// flowInput is what a run of a flow begins with.
type flowInput struct {
	Key   string              // no two runs have the same
	Acts  map[string][]string // what the handlers of steps are to do
	Items []plainTask
}

// task returns the task of a step.
func (in flowInput) task(step string) task {
	return task{Token: flowToken + in.Key + "/" + step, Acts: in.Acts[step]}
}

// flowToken is what the token of a step begins with.
const flowToken = "flow "

// listTask makes a list.
type listTask struct {
	task
	Items []plainTask `json:"items"`
}

func (listTask) Kind() string { return "list" }

// built are the flows as package flow has them.
var built, lists = buildFlows()

// buildFlows builds all flows. Their list steps have one kind, and so one handler.
func buildFlows() (all []*flow.Flow[flowInput], list *flow.Step[listTask, []plainTask]) {
	for _, shape := range flows {
		f := flow.New[flowInput](shape.Name)
		var steps []flow.Dependency
		for _, s := range shape.Steps {
			opts := []flow.StepOption{flow.Enqueue(jobs.Queue(s.Queue))}
			if s.Quorum > 0 {
				opts = append(opts, flow.Quorum(s.Quorum))
			}
			if s.Optional {
				opts = append(opts, flow.Optional())
			}
			for _, e := range s.After {
				switch before := steps[e.Step]; {
				case s.Map: // Map says so itself
				case e.Least > 0:
					opts = append(opts, flow.If(before.(*flow.Step[listTask, []plainTask]), []map[string]int{{"n": e.Least}}))
				case e.On == history.OnFailure:
					opts = append(opts, flow.OnFailure(before))
				case e.On == history.OnEnd:
					opts = append(opts, flow.OnEnd(before))
				default:
					opts = append(opts, flow.After(before))
				}
			}
			switch {
			case s.Map:
				steps = append(steps, flow.Map[string](f, s.Name, steps[s.After[0].Step].(*flow.Step[listTask, []plainTask]), opts...))
			case s.Kind == "list":
				list = flow.Add[[]plainTask](f, s.Name, func(in flowInput) listTask { return listTask{in.task(s.Name), in.Items} }, opts...)
				steps = append(steps, list)
			default:
				steps = append(steps, addStep(f, s, opts))
			}
		}
		all = append(all, f)
	}
	return all, list
}

// addStep adds a step of one of the kinds of jobs.
func addStep(f *flow.Flow[flowInput], s history.FlowStep, opts []flow.StepOption) flow.Dependency {
	switch s.Kind {
	case "tx":
		return flow.Add[string](f, s.Name, func(in flowInput) txTask { return txTask{in.task(s.Name)} }, opts...)
	case "complete":
		return flow.Add[flow.None](f, s.Name, func(in flowInput) completeTask { return completeTask{in.task(s.Name)} }, opts...)
	case "batch":
		return flow.Add[flow.None](f, s.Name, func(in flowInput) batchTask { return batchTask{in.task(s.Name)} }, opts...)
	case "batchtx":
		return flow.Add[flow.None](f, s.Name, func(in flowInput) batchTxTask { return batchTxTask{in.task(s.Name)} }, opts...)
	}
	return flow.Add[string](f, s.Name, func(in flowInput) plainTask { return plainTask{in.task(s.Name)} }, opts...)
}

// handleLists registers the handler of those steps that make lists.
func (n *node) handleLists(h *jobs.Handlers, opts []jobs.HandlerOption) {
	flow.HandleTx(h, lists, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[listTask]) (items []plainTask, err error) {
		err = n.run(ctx, j.Header, j.Args.task, func() error {
			items = j.Args.Items
			return n.handled(ctx, tx, j.Header, j.Args.task)
		})
		return items, err
	}, opts...)
}

// drawFlow draws what a run of a flow begins with. drawActs says what a handler is to do.
func drawFlow(r *rand.Rand, shape history.Flow, key string, drawActs func() []string) flowInput {
	in := flowInput{Key: key, Acts: map[string][]string{}}
	const often = 0.12 // of the steps
	acts := func() []string {
		if fault.Chance(r, often) {
			return []string{actGamble}
		}
		return drawActs()
	}
	for _, s := range shape.Steps {
		in.Acts[s.Name] = acts()
	}
	for i := range fault.OneOf(r, 0, 0, 1, 2, 3, 5) {
		in.Items = append(in.Items, plainTask{task{fmt.Sprintf("%s%s/item %d", flowToken, key, i+1), acts(), i + 1}})
	}
	return in
}

// startFlow starts a run of a flow in the transaction.
func (e *enqueuer) startFlow(ctx context.Context, a *enqueueAttempt) error {
	n := e.dice.IntN(len(flows))
	a.event = e.token()
	a.entries = append(a.entries, entry{begun: a.life, async: e.async, Enqueued: startedFlow(n, a.event, e.name)})
	in := drawFlow(e.dice, flows[n], a.event, e.drawActs)
	_, err := either.Do(a.tx, func(tx *sql.Tx) (flow.Started, error) { return built[n].Start(ctx, e.flows, tx, in, flow.Key(a.event)) })
	return err
}

// startedFlow is the ledger's entry of a run. It has no id, like a job for which an event asks.
func startedFlow(n int, key, who string) history.Enqueued {
	return history.Enqueued{Token: key, Who: who, Flow: flows[n].Name, Asked: true}
}

// startLast starts a run of each flow, so that there is one in every run, and cancels the
// first of them.
func (s *shared) startLast(ctx context.Context) error {
	dice, client := fault.Dice(s.scenario.Seed, "last flows"), flow.NewClient(s.client)
	for n, f := range built {
		one := entry{begun: s.on.Life(), Enqueued: startedFlow(n, fmt.Sprintf("last-flow-%d", n), "harness")}
		one.Outcome = history.EnqueueCommitted
		started, err := f.Start(ctx, client, nil, drawFlow(dice, flows[n], one.Token, func() []string { return nil }), flow.Key(one.Token))
		if err != nil {
			return err
		}
		s.ledger.enqueue([]entry{one})
		if n > 0 {
			continue
		}
		if _, err := client.Cancel(ctx, nil, started.Run); err != nil {
			return err
		}
	}
	return nil
}

const (
	tellsDisturbed   history.Fault = "workers cut off as they told of the ends of steps"
	flowRunsAborted  history.Fault = "runs of flows cancelled by an operator"
	flowRunsRestored history.Fault = "runs of flows retried by an operator"
)

// flowFaults are about flows.
var flowFaults = []faultRow{
	{Row: fault.New("tell", "cuts a worker off before or after the statement that tells of the ends of a flow's steps",
		tellsDisturbed).Reaching(oracle.CutTells),
		worker: at(counted(tellsDisturbed, (*slot).cut), beforeTell, afterTell)},
	{Row: fault.New("abort", "cancels a run of a flow", flowRunsAborted).Reaching(oracle.AbortedFlows), operator: (*operator).abort},
	{Row: fault.New("revive", "retries a run of a flow that has ended, from what has failed or from some step",
		flowRunsRestored).Reaching(oracle.RevivedFlows),
		operator: (*operator).revive},
	actRow(actSkip, "says that its step of a flow is not needed", oracle.SkippingHandlers, oracle.DiscardingHandlers),
}

// abort cancels a run of a flow.
func (o *operator) abort(ctx, _ context.Context) error {
	var run int64
	err := o.of.on.DB.QueryRowContext(ctx, `SELECT id FROM jobs_flow_runs WHERE state = 'running' AND cancel_at IS NULL ORDER BY random() LIMIT 1`).Scan(&run)
	if err == nil {
		err = o.ops.CancelFlowRun(ctx, run, stage.By)
	}
	if err == nil {
		o.did(flowRunsAborted, "", fmt.Sprintf("run %d", run))
	}
	return unlessOver(err)
}

// revive retries a run of a flow: from what made it fail, or from a step that had a job, so
// that it is not refused.
func (o *operator) revive(ctx, _ context.Context) error {
	var run int64
	var step string
	var failed bool
	err := o.of.on.DB.QueryRowContext(ctx, `
SELECT r.id, s.name, r.state = 'failed' FROM jobs_flow_runs AS r JOIN jobs_flow_steps AS s ON s.id >> 30 = r.id
WHERE r.state <> 'running' AND s.id & 1048575 = 0 AND s.job_id IS NOT NULL AND (s.state IN ('failed', 'cancelled') OR random() < 0.1)
ORDER BY r.state = 'completed', random() LIMIT 1`).Scan(&run, &step, &failed)
	if err == nil {
		var from []string
		if fault.Chance(o.dice, 0.5) || !failed {
			from = append(from, step)
		}
		err = o.ops.RetryFlowRun(ctx, run, stage.By, from...)
	}
	if err == nil {
		o.did(flowRunsRestored, "", fmt.Sprintf("run %d, from %s", run, step))
	}
	return unlessOver(err)
}

// unlessOver returns err, or nil if workers or a crash may have forestalled the operator.
func unlessOver(err error) error {
	var ended *ops.StateError
	if errors.Is(err, sql.ErrNoRows) || errors.Is(err, ops.ErrNotFound) || errors.As(err, &ended) {
		return nil
	}
	return err
}

// flowTables are where the database records what becomes of runs of flows: every
// change of a run's state and of a step's, and each job of a step. A job that an operator
// enqueues again has the meta of the first one, and is no job of the run.
const flowTables = `
CREATE TABLE sim_flows (seq BIGSERIAL PRIMARY KEY, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), tx TEXT NOT NULL DEFAULT pg_current_xact_id()::text,
	who TEXT NOT NULL DEFAULT current_setting('application_name'), run BIGINT NOT NULL, flow TEXT, key TEXT, step BIGINT NOT NULL DEFAULT 0, item BIGINT NOT NULL DEFAULT 0,
	was TEXT NOT NULL, state TEXT NOT NULL, job BIGINT, cancelled BOOLEAN NOT NULL DEFAULT false);
CREATE TABLE sim_flow_jobs (at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), run BIGINT NOT NULL, step BIGINT NOT NULL, job BIGINT NOT NULL,
	kind TEXT NOT NULL, queue TEXT NOT NULL, token TEXT);

CREATE FUNCTION sim_flow_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF TG_OP = 'DELETE' THEN
		INSERT INTO sim_flows (run, flow, key, was, state) VALUES (OLD.id, OLD.flow, OLD.key, OLD.state, '');
	ELSIF TG_OP = 'INSERT' OR OLD.state <> NEW.state OR OLD.cancel_at IS DISTINCT FROM NEW.cancel_at THEN
		INSERT INTO sim_flows (run, flow, key, was, state, cancelled)
		VALUES (NEW.id, NEW.flow, NEW.key, CASE TG_OP WHEN 'INSERT' THEN '' ELSE OLD.state END, NEW.state, NEW.cancel_at IS NOT NULL);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER sim_flow_run AFTER INSERT OR UPDATE OR DELETE ON jobs_flow_runs FOR EACH ROW EXECUTE FUNCTION sim_flow_run();

CREATE FUNCTION sim_flow_step() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF TG_OP = 'DELETE' THEN
		INSERT INTO sim_flows (run, step, item, was, state, job) VALUES (OLD.id >> 30, OLD.id >> 20 & 1023, OLD.id & 1048575, OLD.state, '', OLD.job_id);
	ELSIF TG_OP = 'INSERT' OR OLD.state <> NEW.state OR OLD.job_id IS DISTINCT FROM NEW.job_id THEN
		INSERT INTO sim_flows (run, step, item, was, state, job)
		VALUES (NEW.id >> 30, NEW.id >> 20 & 1023, NEW.id & 1048575, CASE TG_OP WHEN 'INSERT' THEN '' ELSE OLD.state END, NEW.state, NEW.job_id);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER sim_flow_step AFTER INSERT OR UPDATE OR DELETE ON jobs_flow_steps FOR EACH ROW EXECUTE FUNCTION sim_flow_step();

CREATE FUNCTION sim_flow_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO sim_flow_jobs (run, step, job, kind, queue, token)
	VALUES ((NEW.meta->>'flow_run')::bigint, (NEW.meta->>'flow_step')::bigint, NEW.id, NEW.kind, NEW.queue, NEW.args->>'token');
	RETURN NULL;
END $$;
CREATE TRIGGER sim_flow_job AFTER INSERT ON jobs FOR EACH ROW WHEN (NEW.meta ? 'flow_step' AND current_query() LIKE '%flow_step%') EXECUTE FUNCTION sim_flow_job()`

// collectFlows reads what became of runs of flows. It adds each job of a step to the enqueued jobs,
// and each job of a cancelled run to the cancelled ones.
func (d *database) collectFlows(ctx context.Context, j *history.Jobs, zero time.Time) (err error) {
	j.Flows = flows
	const since = `extract(epoch FROM at - $1::timestamptz)::float8`
	j.Advances, err = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.FlowChange) error {
		return r.Scan(&v.At, &v.Tx, &v.Who, &v.Run, &v.Flow, &v.Key, &v.Step, &v.Item, &v.Was, &v.State, &v.Job, &v.Cancelled)
	}, `SELECT `+since+`, tx, who, run, coalesce(flow, ''), coalesce(key, ''), step, item, was, state, coalesce(job, 0), cancelled FROM sim_flows ORDER BY seq`, zero)
	if err != nil {
		return err
	}
	j.StepJobs, err = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.StepJob) error {
		return r.Scan(&v.At, &v.Run, &v.Step, &v.Item, &v.ID, &v.Kind, &v.Queue, &v.Token)
	}, `SELECT `+since+`, run, step >> 20 & 1023, step & 1048575, job, kind, queue, coalesce(token, '') FROM sim_flow_jobs ORDER BY at, job`, zero)
	if err != nil {
		return err
	}
	cancelled, known := map[int64]float64{}, map[string]bool{} // the last time, by runs
	for _, c := range j.Advances {
		if c.Flow != "" && c.Cancelled {
			cancelled[c.Run] = c.At
		}
	}
	for _, s := range j.StepJobs {
		known[s.Token] = true
		j.Enqueued = append(j.Enqueued, history.Enqueued{Token: s.Token, Who: fmt.Sprintf("run %d", s.Run), Kind: s.Kind, Queue: s.Queue, Outcome: history.EnqueueCommitted, At: s.At})
		if s.At < cancelled[s.Run] {
			j.Cancels = append(j.Cancels, history.Cancel{ID: s.ID, At: cancelled[s.Run]})
		}
	}
	for _, r := range j.Runs {
		// A crash may have taken a run back.
		if j.Forgetful && strings.HasPrefix(r.Token, flowToken) && !known[r.Token] {
			known[r.Token] = true
			j.Enqueued = append(j.Enqueued, history.Enqueued{Token: r.Token, Who: "a run", Outcome: history.EnqueueUnsure})
		}
	}
	return nil
}
