package alarms

import "github.com/pgfrontier/worker/ops"

// JobsSQL is the statement about jobs, for those who look at its plan.
var JobsSQL = jobsSQL

// List is what is told of workers.
func List(workers []ops.Worker, place func(ops.Worker) string) []Alarm {
	return short(ofWorkers(workers, place))
}
