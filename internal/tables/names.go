package tables

import (
	"cmp"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
)

// Names are the names that users configure, each "table" or "schema.table".
type Names struct {
	WorkerNodes, ConsumerAssignments, ConsumerCheckpoints, ConsumerGapSkips, LeaderElection string
	Events, AggregateHeads                                                                  string
}

// Default are the default names of tables.
var Default = Names{
	WorkerNodes:         "worker_nodes",
	ConsumerAssignments: "consumer_assignments",
	ConsumerCheckpoints: "consumer_checkpoints",
	ConsumerGapSkips:    "consumer_gap_skips",
	LeaderElection:      "worker_leader_election",
	Events:              "events",
	AggregateHeads:      "aggregate_heads",
}

// OrDefault returns n with [Default] for empty names.
func (n Names) OrDefault() Names {
	d := Default
	return Names{
		WorkerNodes:         cmp.Or(n.WorkerNodes, d.WorkerNodes),
		ConsumerAssignments: cmp.Or(n.ConsumerAssignments, d.ConsumerAssignments),
		ConsumerCheckpoints: cmp.Or(n.ConsumerCheckpoints, d.ConsumerCheckpoints),
		ConsumerGapSkips:    cmp.Or(n.ConsumerGapSkips, d.ConsumerGapSkips),
		LeaderElection:      cmp.Or(n.LeaderElection, d.LeaderElection),
		Events:              cmp.Or(n.Events, d.Events),
		AggregateHeads:      cmp.Or(n.AggregateHeads, d.AggregateHeads),
	}
}

// Tables are the validated names of all tables.
type Tables struct {
	Nodes, Assignments, Checkpoints, GapSkips, Leader ident.Table
	Events, Heads                                     ident.Table

	// The following names are derived from Checkpoints.
	Token, Settled, Changes, Version ident.Table
	DeadLetters, Operations, Stopped ident.Table
}

// Parse validates the names. An error names the setting: prefix and the name of the setting in
// package migrations, such as WithWorkerNodesTable.
func Parse(n Names, prefix string) (t Tables, err error) {
	var all []error
	parse := func(into *ident.Table, setting, name string) {
		table, err := ident.ParseTable(prefix+setting, name)
		all = append(all, err)
		*into = table
	}
	const checkpoints = "ConsumerCheckpointsTable"
	parse(&t.Nodes, "WorkerNodesTable", n.WorkerNodes)
	parse(&t.Assignments, "ConsumerAssignmentsTable", n.ConsumerAssignments)
	parse(&t.Checkpoints, checkpoints, n.ConsumerCheckpoints)
	parse(&t.GapSkips, "ConsumerGapSkipsTable", n.ConsumerGapSkips)
	parse(&t.Leader, "LeaderElectionTable", n.LeaderElection)
	parse(&t.Events, "EventsTable", n.Events)
	parse(&t.Heads, "AggregateHeadsTable", n.AggregateHeads)
	if err := errtext.Join(all...); err != nil {
		return t, err
	}
	beside := func(into *ident.Table, replaced, suffix string) {
		table, err := t.Checkpoints.Sibling(prefix+checkpoints, replaced, suffix)
		all = append(all, err)
		*into = table
	}
	beside(&t.Token, "", "_token")
	beside(&t.Settled, "", "_settled")
	beside(&t.Changes, "", "_changes")
	beside(&t.Version, "", "_schema")
	beside(&t.DeadLetters, "_checkpoints", "_dead_letters")
	beside(&t.Stopped, "_checkpoints", "_past_workers")
	beside(&t.Operations, "_checkpoints", "_operations")
	return t, errtext.Join(all...)
}
