package tables

import (
	"reflect"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Tables are the validated names of the tables of a worker and of its event log.
//
// The tag "of" is the field of store.Names from which a name comes. A table with the tag "add" is
// in the same schema and has this suffix in addition. The suffix replaces the suffix of the tag
// "drop". Resolve leaves out a table with resolve:"-".
type Tables struct {
	Nodes       ident.Table `of:"WorkerNodes"`
	Stopped     ident.Table `of:"ConsumerCheckpoints" drop:"_checkpoints" add:"_past_workers"`
	Assignments ident.Table `of:"ConsumerAssignments"`
	Checkpoints ident.Table `of:"ConsumerCheckpoints"`
	GapSkips    ident.Table `of:"ConsumerGapSkips"`
	Leader      ident.Table `of:"LeaderElection"`
	Token       ident.Table `of:"ConsumerCheckpoints" add:"_token"`
	Settled     ident.Table `of:"ConsumerCheckpoints" add:"_settled"`
	Changes     ident.Table `of:"ConsumerCheckpoints" add:"_changes"`
	Version     ident.Table `of:"ConsumerCheckpoints" add:"_schema"`
	DeadLetters ident.Table `of:"ConsumerCheckpoints" drop:"_checkpoints" add:"_dead_letters"`
	Operations  ident.Table `of:"ConsumerCheckpoints" drop:"_checkpoints" add:"_operations"`
	Receipts    ident.Table `of:"ConsumerCheckpoints" drop:"_checkpoints" add:"_receipts"`

	// The event store resolves its own tables.
	Events ident.Table `of:"Events" resolve:"-"`
	Heads  ident.Table `of:"AggregateHeads" resolve:"-"`
}

// Jobs are the validated names of the tables of jobs, with the tags of [Tables].
type Jobs struct {
	Jobs           ident.Table `of:"Jobs"`
	History        ident.Table `of:"Jobs" add:"_history"`
	Attempts       ident.Table `of:"Jobs" add:"_attempts"`
	Logs           ident.Table `of:"Jobs" add:"_logs"`
	Queues         ident.Table `of:"Jobs" add:"_queues"`
	Wanted         ident.Table `of:"Jobs" add:"_wanted"`
	Operations     ident.Table `of:"Jobs" add:"_operations"`
	Once           ident.Table `of:"Jobs" add:"_once"`
	Emitted        ident.Table `of:"Jobs" add:"_emitted"`
	EmittedThrough ident.Table `of:"Jobs" add:"_emitted_through"`
	Schedules      ident.Table `of:"Jobs" add:"_schedules" resolve:"-"` // a worker does not use it
	Flows          ident.Table `of:"Jobs" add:"_flows"`
	FlowRuns       ident.Table `of:"Jobs" add:"_flow_runs"`
	FlowSteps      ident.Table `of:"Jobs" add:"_flow_steps"`
	FlowSweep      ident.Table `of:"Jobs" add:"_flow_sweep"`
	Workers        ident.Table `of:"Jobs" add:"_workers"`
	Stopped        ident.Table `of:"Jobs" add:"_past_workers"`
	Leader         ident.Table `of:"Jobs" add:"_leader"`
	Token          ident.Table `of:"Jobs" add:"_token"`
	Changes        ident.Table `of:"Jobs" add:"_changes"`
	Version        ident.Table `of:"Jobs" add:"_schema"`
}

// Parse validates the names of the tables of a worker and of its event log. An error names the
// field of store.Names and its value.
func Parse(n store.Names) (t Tables, err error) {
	err = parse(n, &t)
	return t, err
}

// ParseJobs validates the names of the tables of jobs, as [Parse] does.
func ParseJobs(n store.Names) (t Jobs, err error) {
	err = parse(n, &t)
	return t, err
}

// All returns the tables, in the order of the fields.
func (t Tables) All() []ident.Table { return all(t) }
func (t Jobs) All() []ident.Table   { return all(t) }

func all(t any) (all []ident.Table) {
	for v, i := reflect.ValueOf(t), 0; i < v.NumField(); i++ {
		all = append(all, v.Field(i).Interface().(ident.Table))
	}
	return all
}
