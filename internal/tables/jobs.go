package tables

import (
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
)

// DefaultJobs is the default name of the table of jobs.
const DefaultJobs = "jobs"

// Jobs are the validated names of the tables of jobs. All other names are derived from the name
// of the table of jobs, in its schema.
type Jobs struct {
	Jobs, History, Attempts, Logs   ident.Table
	Queues, Wanted, Operations      ident.Table
	Once, Emitted, EmittedThrough   ident.Table
	Workers, Leader, Token, Changes ident.Table
	Stopped                         ident.Table
	Schedules                       ident.Table
	Flows, FlowRuns, FlowSteps      ident.Table
	FlowSweep                       ident.Table
	Version                         ident.Table
}

// ParseJobs validates the name of the table of jobs. An empty name is [DefaultJobs]. setting
// names the setting in errors.
func ParseJobs(name, setting string) (t Jobs, err error) {
	if name == "" {
		name = DefaultJobs
	}
	if t.Jobs, err = ident.ParseTable(setting, name); err != nil {
		return t, err
	}
	var all []error
	for suffix, into := range map[string]*ident.Table{
		"_history": &t.History, "_attempts": &t.Attempts, "_logs": &t.Logs,
		"_queues": &t.Queues, "_wanted": &t.Wanted, "_operations": &t.Operations,
		"_once": &t.Once, "_emitted": &t.Emitted, "_emitted_through": &t.EmittedThrough,
		"_schedules": &t.Schedules, "_workers": &t.Workers, "_past_workers": &t.Stopped, "_leader": &t.Leader, "_token": &t.Token, "_changes": &t.Changes,
		"_flows": &t.Flows, "_flow_runs": &t.FlowRuns, "_flow_steps": &t.FlowSteps, "_flow_sweep": &t.FlowSweep,
		"_schema": &t.Version,
	} {
		var err error
		*into, err = t.Jobs.Sibling(setting, "", suffix)
		all = append(all, err)
	}
	return t, errtext.Join(all...)
}
