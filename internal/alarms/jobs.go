package alarms

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/ops"
)

// JobWorkerErrors returns the errors in the Status of a worker of jobs. LostSlots returns the
// lost slots.
func JobWorkerErrors(status json.RawMessage) (all []WorkerError) {
	var reported struct {
		CoordinationError, SettleError, NotifyError string
		Queues                                      []struct{ Name, LastError string }
	}
	_ = json.Unmarshal(status, &reported) // another version may have stored any JSON
	for _, c := range []WorkerError{{"coordination", reported.CoordinationError}, {"ends of jobs", reported.SettleError}, {"notify", reported.NotifyError}} {
		if c.Text != "" {
			all = append(all, c)
		}
	}
	for _, q := range reported.Queues {
		if q.LastError != "" {
			all = append(all, WorkerError{"queue " + q.Name, q.LastError})
		}
	}
	return all
}

// LostSlots returns the slots of a worker of jobs that abandoned handlers occupy.
func LostSlots(status json.RawMessage) (all []string) {
	var reported struct {
		Queues []struct {
			Name                 string
			Overdue, Concurrency int
			OverdueSince         time.Time
		}
	}
	_ = json.Unmarshal(status, &reported) // another version may have stored any JSON
	for _, q := range reported.Queues {
		if q.Overdue > 0 {
			all = append(all, fmt.Sprintf("has lost %d of %d slots of queue %s, the first since %s", q.Overdue, q.Concurrency, q.Name, q.OverdueSince.UTC().Format("2006-01-02 15:04:05")))
		}
	}
	return all
}

// ofJobWorkers returns the alarms about workers of jobs: errors and lost slots of living
// workers, and silent workers.
func ofJobWorkers(workers []ops.Worker, place func(ops.Worker) string) []Alarm {
	all := sharedErrors(Jobs, workers, JobWorkerErrors, place)
	for _, w := range workers {
		if IsSilent(w) {
			all = append(all, Alarm{Jobs, place(w), "no heartbeat for long"})
			continue
		}
		for _, lost := range LostSlots(w.Status) {
			all = append(all, Alarm{Jobs, place(w), lost})
		}
	}
	return all
}
