package alarms

import "github.com/pgfrontier/worker/ops"

// JobsSQL is the statement about jobs, to test its plan.
var JobsSQL = jobsSQL

// List returns the alarms about workers.
func List(workers []ops.Worker, place func(ops.Worker) string) []Alarm {
	return short(ofWorkers(workers, place))
}
