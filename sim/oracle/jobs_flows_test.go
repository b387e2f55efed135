package oracle

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/pgfrontier/worker/sim/history"
)

// finish adds a job that ended so, with one run, and all that goes with it.
func finish(j *history.Jobs, id int64, kind, token, state string, at float64, result string) {
	outcome := map[string]string{"completed": history.RunOK, "failed": history.RunTerminal, "cancelled": history.RunDiscarded}[state]
	x := history.Finished{ID: id, Token: token, Kind: kind, State: state, Attempt: 1, MaxResets: 5, Worker: "b", Claim: 100 + id, StartedAt: &at, FinishedAt: at, Result: result}
	x.Failures = int(one(state == "failed"))
	j.Finished = append(j.Finished, x)
	j.Enqueued = append(j.Enqueued, history.Enqueued{Token: token, Kind: kind, Outcome: history.EnqueueCommitted})
	j.Runs = append(j.Runs, history.JobRun{Token: token, ID: id, Attempt: 1, Worker: "b", Name: "worker 2.1", Began: at, Ended: at, Outcome: outcome})
	j.Steps = append(j.Steps, history.JobStep{At: at, ID: id, Was: "available", State: "running", Attempt: 1, Claim: x.Claim}, history.JobStep{At: at, ID: id, Was: "running", Attempt: 1, Claim: x.Claim})
}

// withFlows adds two runs of a flow. In the first, b fails, so that the join is skipped
// and sorry runs; both elements of the list complete. A retry of b lets the join run,
// and sorry is not needed. The second is cancelled before anything has run.
func withFlows(j *history.Jobs) {
	after := func(on string, steps ...int) (all []history.FlowEdge) {
		for _, s := range steps {
			all = append(all, history.FlowEdge{Step: s, On: on})
		}
		return all
	}
	j.Flows = []history.Flow{{Name: "f", Steps: []history.FlowStep{
		{Name: "a", Kind: "plain"}, {Name: "b", Kind: "plain"}, {Name: "list", Kind: "list"},
		{Name: "each", Kind: "plain", Map: true, After: after(history.OnSuccess, 2)},
		{Name: "join", Kind: "plain", After: after(history.OnSuccess, 0, 1, 3)},
		{Name: "sorry", Kind: "plain", After: after(history.OnFailure, 1)},
	}}}
	j.Started = []history.Enqueued{{Token: "k", Flow: "f", Outcome: history.EnqueueCommitted}, {Token: "l", Flow: "f", Outcome: history.EnqueueCommitted}, {Token: "m", Flow: "f", Outcome: history.EnqueueRolledBack}}
	tx, run, who := 0, int64(1), "sim worker 1.1"
	in := func(n int, by string) { tx, who = n, by }
	add := func(c history.FlowChange) {
		c.At, c.Tx, c.Who, c.Run = float64(tx)+0.5, fmt.Sprint(tx), who, run
		j.Advances = append(j.Advances, c)
	}
	row := func(key, was, state string, cancelled bool) {
		add(history.FlowChange{Flow: "f", Key: key, Was: was, State: state, Cancelled: cancelled})
	}
	step := func(n, item int, was, state string, job int64) {
		add(history.FlowChange{Step: n, Item: item, Was: was, State: state, Job: job})
		if s := j.Flows[0].Steps[n]; state == "enqueued" {
			one := history.StepJob{At: float64(tx), Run: run, Step: n, Item: item, ID: job, Kind: s.Kind, Token: "flow " + string("kl"[run-1]) + "/" + s.Name}
			if item > 0 {
				one.Token = fmt.Sprint("item ", item)
			}
			j.StepJobs = append(j.StepJobs, one)
		}
	}
	begin := func(first int64) {
		for n := range 6 {
			if n < 3 {
				step(n, 0, "", "enqueued", first+int64(n))
			} else {
				step(n, 0, "", "waiting", 0)
			}
		}
	}
	in(1, "sim writer 1")
	row("k", "", "running", false)
	begin(20)
	finish(j, 20, "plain", "flow k/a", "completed", 2, `"flow k/a"`)
	finish(j, 21, "plain", "flow k/b", "failed", 2, "")
	finish(j, 22, "list", "flow k/list", "completed", 2, `[{"token": "item 1"}, {"token": "item 2"}]`)
	in(2, "sim worker 1.1")
	step(0, 0, "enqueued", "completed", 20)
	step(1, 0, "enqueued", "failed", 21)
	step(2, 0, "enqueued", "completed", 22)
	step(3, 0, "waiting", "ready", 0)
	step(4, 0, "waiting", "skipped", 0)
	step(5, 0, "waiting", "enqueued", 23)
	in(3, "sim worker 1.1")
	step(3, 0, "ready", "spread", 0)
	step(3, 1, "", "enqueued", 24)
	step(3, 2, "", "enqueued", 25)
	finish(j, 23, "plain", "flow k/sorry", "completed", 4, `"flow k/sorry"`)
	finish(j, 24, "plain", "item 1", "completed", 4, `"item 1"`)
	finish(j, 25, "plain", "item 2", "completed", 4, `"item 2"`)
	in(4, "sim worker 2.1")
	step(5, 0, "enqueued", "completed", 23)
	step(3, 1, "enqueued", "completed", 24)
	step(3, 2, "enqueued", "completed", 25)
	step(3, 0, "spread", "completed", 0)
	row("k", "running", "failed", false)
	in(5, "sim harness")
	step(1, 0, "failed", "enqueued", 26)
	step(4, 0, "skipped", "waiting", 0)
	step(5, 0, "completed", "waiting", 0)
	row("k", "failed", "running", false)
	finish(j, 26, "plain", "flow k/b", "completed", 6, `"flow k/b"`)
	in(6, "sim worker 2.1")
	step(1, 0, "enqueued", "completed", 26)
	step(4, 0, "waiting", "enqueued", 27)
	step(5, 0, "waiting", "skipped", 0)
	finish(j, 27, "plain", "flow k/join", "completed", 7, `"flow k/join"`)
	in(7, "sim worker 2.1")
	step(4, 0, "enqueued", "completed", 27)
	row("k", "running", "completed", false)

	run = 2
	in(8, "sim writer 1")
	row("l", "", "running", false)
	begin(30)
	in(9, "sim harness")
	row("l", "running", "running", true)
	for n := 3; n < 6; n++ {
		step(n, 0, "waiting", "cancelled", 0)
	}
	for n, s := range j.Flows[0].Steps[:3] {
		finish(j, 30+int64(n), s.Kind, "flow l/"+s.Name, "cancelled", 9, "")
		step(n, 0, "enqueued", "cancelled", 30+int64(n))
	}
	row("l", "running", "cancelled", true)
}

// change is the change of a step to a state, in the evidence of withFlows.
func change(j *history.Jobs, run int64, step, item int, state string) *history.FlowChange {
	i := slices.IndexFunc(j.Advances, func(c history.FlowChange) bool {
		return c.Flow == "" && c.Run == run && c.Step == step && c.Item == item && c.State == state
	})
	return &j.Advances[i]
}

// runEnd is how a run has ended.
func runEnd(j *history.Jobs, state string) *history.FlowChange {
	i := slices.IndexFunc(j.Advances, func(c history.FlowChange) bool { return c.Flow != "" && c.State == state })
	return &j.Advances[i]
}

// job is the finished job of an id.
func job(j *history.Jobs, id int64) *history.Finished {
	return &j.Finished[slices.IndexFunc(j.Finished, func(x history.Finished) bool { return x.ID == id })]
}

// All is well but for what one flaw breaks.
func TestFlowFlaws(t *testing.T) {
	const once, before, joins, end = "each step once", "not before", "joins", "runs end"
	for name, c := range map[string]struct {
		flaw   func(j *history.Jobs)
		breaks string
	}{
		"all is well": {func(*history.Jobs) {}, ""},
		"a step twice": {func(j *history.Jobs) {
			again := *change(j, 1, 5, 0, "enqueued")
			again.Job = 99
			j.Advances = slices.Insert(j.Advances, slices.Index(j.Advances, *change(j, 1, 3, 0, "ready"))+3, again)
		}, once},
		"an element twice":        {func(j *history.Jobs) { change(j, 1, 3, 2, "enqueued").Item = 1 }, once},
		"a job for two steps":     {func(j *history.Jobs) { change(j, 1, 3, 2, "enqueued").Job = 24 }, once},
		"a job beside its step":   {func(j *history.Jobs) { j.StepJobs = append(j.StepJobs, history.StepJob{Run: 1, Step: 4, ID: 98}) }, once},
		"a step without its job":  {func(j *history.Jobs) { j.StepJobs = j.StepJobs[1:] }, once},
		"twice, without a retry":  {func(j *history.Jobs) { j.Advances[slices.Index(j.Advances, *runEnd(j, "failed"))+4].Was = "running" }, once},
		"before the end":          {func(j *history.Jobs) { job(j, 26).FinishedAt = 7 }, before},
		"before the list is made": {func(j *history.Jobs) { job(j, 22).FinishedAt = 7 }, before},
		"though one has failed":   {func(j *history.Jobs) { job(j, 26).State = "failed" }, before},
		"though none has failed":  {func(j *history.Jobs) { job(j, 21).State = "completed" }, before},
		"of no list":              {func(j *history.Jobs) { job(j, 22).Result = `[{"token": "item 1"}]` }, before},
		"other arguments":         {func(j *history.Jobs) { j.StepJobs[0].Token = "flow k/b" }, before},
		"another queue":           {func(j *history.Jobs) { j.StepJobs[0].Queue = "mail" }, before},
		"after a cancellation": {func(j *history.Jobs) {
			late := *change(j, 2, 0, 0, "enqueued")
			late.Step, late.Job = 5, 99
			j.Advances = append(j.Advances, late)
		}, before},
		"another end than its job's": {func(j *history.Jobs) { change(j, 1, 0, 0, "completed").State = "failed" }, joins},
		"an element's other end":     {func(j *history.Jobs) { change(j, 1, 3, 2, "completed").State = "failed" }, joins},
		"a list's other end":         {func(j *history.Jobs) { change(j, 1, 3, 0, "completed").State = "failed" }, joins},
		"a list that is longer":      {func(j *history.Jobs) { job(j, 22).Result = `[{"token": "item 1"}, {"token": "item 2"}, {}]` }, joins},
		"needed, and skipped":        {func(j *history.Jobs) { job(j, 26).State = "failed" }, joins},
		"cancelled by nobody": {func(j *history.Jobs) {
			runEnd(j, "cancelled").Cancelled = false
			change(j, 1, 5, 0, "skipped").State = "cancelled"
		}, joins},
		"completed, and was to fail": {func(j *history.Jobs) { runEnd(j, "completed").State = "failed" }, joins},
		"failed, and was cancelled":  {func(j *history.Jobs) { runEnd(j, "cancelled").State = "failed" }, joins},
		"a run that goes on":         {func(j *history.Jobs) { runEnd(j, "completed").State = "running" }, end},
		"a run that is gone":         {func(j *history.Jobs) { j.Started[2].Outcome = history.EnqueueCommitted }, end},
		"a run rolled back":          {func(j *history.Jobs) { j.Started[1].Outcome = history.EnqueueRolledBack }, end},
		"a run that nobody started":  {func(j *history.Jobs) { j.Started = j.Started[1:] }, end},
		"not at rest":                {func(j *history.Jobs) { j.Rest.Flows = 1 }, "comes to rest"},
	} {
		t.Run(name, func(t *testing.T) {
			j := jobsEvidence().Jobs
			c.flaw(j)
			b := newJobLedgers(j)
			for _, f := range []Finding{b.stepsOnce(), b.notBefore(), b.joins(), b.runsEnd(), b.rest()} {
				if f.Checks == 0 || f.Name == c.breaks && f.Holds() || c.breaks == "" && !f.Holds() {
					t.Errorf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
				}
			}
		})
	}
}

func TestFlowsReachStates(t *testing.T) {
	counts := map[string]int64{}
	newJobLedgers(jobsEvidence().Jobs).countFlows(counts)
	want := map[string]int64{
		flowsCompleted: 1, flowsFailed: 0, flowsCancelled: 1, flowsRetried: 1, flowJoins: 1, joinsAtOnce: 0, stepsSkipped: 2, stepsUnneeded: 0,
		listsSpread: 1, endsSwept: 3,
	}
	if !maps.Equal(counts, want) {
		t.Errorf("%v, want %v", counts, want)
	}
}

// Which end comes first does not matter, and what still runs leaves open what waits for it.
func TestStepsAreEvaluated(t *testing.T) {
	edges := []history.FlowEdge{{Step: 0, On: history.OnSuccess}, {Step: 1, On: history.OnSuccess}}
	for name, c := range map[string]struct {
		last  history.FlowStep // after the first two
		ends  [2]string        // of their jobs
		want  string
		begun bool
	}{
		"all, and one is open":         {history.FlowStep{}, [2]string{"completed", ""}, "", false},
		"all":                          {history.FlowStep{}, [2]string{"completed", "completed"}, "", true},
		"all, and one has failed":      {history.FlowStep{}, [2]string{"failed", ""}, "skipped", false},
		"any, and one is open":         {history.FlowStep{Quorum: 1}, [2]string{"", "completed"}, "", true},
		"any, and one has failed":      {history.FlowStep{Quorum: 1}, [2]string{"failed", ""}, "", false},
		"any, and all have failed":     {history.FlowStep{Quorum: 1}, [2]string{"failed", "failed"}, "skipped", false},
		"a step that its handler left": {history.FlowStep{}, [2]string{"completed", "unneeded"}, "", true},
	} {
		j := &history.Jobs{Flows: []history.Flow{{Name: "f", Steps: []history.FlowStep{{}, {}, c.last}}}}
		j.Flows[0].Steps[2].After = edges
		j.Advances = []history.FlowChange{{Run: 1, Flow: "f", State: running}}
		for n, state := range c.ends {
			j.Advances = append(j.Advances, history.FlowChange{Run: 1, Step: n, State: "enqueued", Job: int64(n + 1)})
			if state == "unneeded" {
				j.Finished = append(j.Finished, history.Finished{ID: int64(n + 1), State: "cancelled", Code: "SKIPPED"})
			} else if state != "" {
				j.Finished = append(j.Finished, history.Finished{ID: int64(n + 1), State: state})
			}
		}
		r := newJobLedgers(j).flowLedgers()[0]
		r.read(func(history.FlowChange) {})
		if e := r.evaluate(forever)[2]; e.state != c.want || e.begun != c.begun {
			t.Errorf("%s: %+v, want %q, begun %t", name, e, c.want, c.begun)
		}
	}
}
