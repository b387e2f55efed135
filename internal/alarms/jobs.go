package alarms

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/ops"
)

// JobsComplaints are the errors in the Status of a worker of jobs. LostSlots has the lost slots.
func JobsComplaints(status json.RawMessage) (all []Complaint) {
	var said struct {
		CoordinationError, SettleError, NotifyError string
		Queues                                      []struct{ Name, LastError string }
	}
	_ = json.Unmarshal(status, &said) // of another version it may be anything
	for _, c := range []Complaint{{"coordination", said.CoordinationError}, {"ends of jobs", said.SettleError}, {"notify", said.NotifyError}} {
		if c.Text != "" {
			all = append(all, c)
		}
	}
	for _, q := range said.Queues {
		if q.LastError != "" {
			all = append(all, Complaint{"queue " + q.Name, q.LastError})
		}
	}
	return all
}

// LostSlots says which slots of a worker of jobs are kept by handlers that were given up.
func LostSlots(status json.RawMessage) (all []string) {
	var said struct {
		Queues []struct {
			Name                 string
			Overdue, Concurrency int
			OverdueSince         time.Time
		}
	}
	_ = json.Unmarshal(status, &said) // of another version it may be anything
	for _, q := range said.Queues {
		if q.Overdue > 0 {
			all = append(all, fmt.Sprintf("has lost %d of %d slots of queue %s, the first since %s", q.Overdue, q.Concurrency, q.Name, q.OverdueSince.UTC().Format("2006-01-02 15:04:05")))
		}
	}
	return all
}

// ofJobWorkers are the complaints of living workers of jobs, their lost slots, and those workers
// that are silent.
func ofJobWorkers(workers []ops.Worker, place func(ops.Worker) string) []Alarm {
	all := complaining(Jobs, workers, JobsComplaints, place)
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
