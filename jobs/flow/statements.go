package flow

import (
	"embed"
	"strconv"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/internal/tables"
)

//go:embed sql/*.sql
var files embed.FS

var texts = sqltext.Parse(files)

// statements is the SQL of flows. Lists are sent as text, of JSON. The planner estimates each list
// at a hundred rows. So it joins a table by its key with a hash of the list, and does not scan the
// list for each row.
//
// A statement that changes a run or its steps locks the run's row first. Rows of several runs are
// locked in the order of their IDs. So no two statements deadlock, and changes of a run are
// serialized. A statement of a worker passes over runs that others have locked, and returns their
// steps. A transaction that is left open on one run does not delay other runs.
//
// A statement may know the steps as they were before it had the lock. So it changes counters by
// increments, and changes a state only if the state is still the expected one.
type statements struct {
	start, owner, advance, spread, grow, grown, begin, sweep, turn  string
	lock, cancel, shrink, stop, enqueued, hold, revive, forget      string
	find, steps, items, counts, list, await, output, outputs, names string
	edges, old, forgetSteps, forgetRuns                             string

	mostSpread int
}

func newStatements(t tables.Jobs, mostSpread int) statements {
	newJobs, ends := queue.ChannelsSQL(t)
	values := sqltext.Names(t, sqltext.Values{
		"runs": t.FlowRuns.SQL(), "steps": t.FlowSteps.SQL(), "turn": t.FlowSweep.SQL(), "new_jobs": newJobs, "ends": ends,
		"jobs_name": ident.Literal(t.Jobs.SQL()), "most": strconv.Itoa(mostSpread), "limit": "{limit}",
	})
	r := func(name string) string { return texts.Statement(name, values) }
	return statements{
		mostSpread: mostSpread,
		start:      r("start"), owner: r("owner"), advance: r("advance"), spread: r("spread"), grow: r("grow"), grown: r("grown"), begin: r("begin"), sweep: r("sweep"), turn: r("take_turn"),
		lock: r("lock"), cancel: r("cancel"), shrink: r("shrink"), stop: r("stop"), enqueued: r("enqueued"), hold: r("hold"), revive: r("revive"), forget: r("forget"),
		find: r("find"), steps: r("steps_of"), items: r("items"), counts: r("counts"), list: r("list"), await: r("await"), output: r("output"), outputs: r("outputs"), names: r("names"),
		edges: r("edges"), old: r("old"), forgetSteps: r("forget_steps"), forgetRuns: r("forget_runs"),
	}
}

// list encodes IDs as text, of JSON.
func list[T ~int64](ids []T) string {
	b := []byte{'['}
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return string(append(b, ']'))
}
