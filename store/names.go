package store

// Names are the names of the tables of one deployment: of the worker, the event log and jobs.
// The option WithNames takes the same value in all packages. The zero value has the
// default names, without a schema.
//
// A name is "table" or "schema.table". An empty name is Prefix and the default name, which the
// field's tag shows. Names with a schema stay as they are. Schema is put before the others. A
// table without a schema is found, and created, through the search path.
type Names struct {
	Schema string // such as "app"; empty: the search path
	Prefix string // of the default names, such as "shop_"

	Events         string `default:"events"`
	AggregateHeads string `default:"aggregate_heads"` // the versions of the aggregates

	WorkerNodes         string `default:"worker_nodes"`           // the live workers
	ConsumerAssignments string `default:"consumer_assignments"`   // which worker runs which consumer
	ConsumerCheckpoints string `default:"consumer_checkpoints"`   // beside it "..._token", "..._settled", "..._changes" and "..._schema"; in "consumer_dead_letters", "consumer_operations", "consumer_receipts" and "consumer_past_workers" the suffix replaces "_checkpoints"
	ConsumerGapSkips    string `default:"consumer_gap_skips"`     // the audit of skipped positions
	LeaderElection      string `default:"worker_leader_election"` // the lease of the leader

	Jobs string `default:"jobs"` // beside it "..._history", "..._attempts" and others
}
