// Package alarms lists the faults of a deployment, one line each. pgfrontier status and top,
// and the overview of the console, show the list. No list of consumers shows these: errors of
// workers, builds that differ, faults of jobs, a read-only or full server, and newer tables.
package alarms

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/ops"
)

// Kind is the subject of an alarm.
type Kind string

// The kinds, in the order of the list.
const (
	Standby  Kind = "standby"  // the server is read-only
	Server   Kind = "server"   // workers may not write, or not connect
	Tables   Kind = "tables"   // a newer version has upgraded the tables
	Worker   Kind = "worker"   // a living worker reports an error
	Consumer Kind = "consumer" // a consumer or a unit has a last error
	Builds   Kind = "builds"   // the builds of workers differ for a consumer
	Jobs     Kind = "jobs"     // a worker of jobs reports an error, or is silent
	Paused   Kind = "paused"   // a queue is paused
	Due      Kind = "due"      // due jobs of a queue do not run
	Failed   Kind = "failed"   // jobs of a queue have failed, and are not acknowledged
	Overdue  Kind = "overdue"  // a schedule is overdue

	PausedSchedule Kind = "paused-schedule"
	Unadvanced     Kind = "unadvanced" // no worker advances the runs of flows
)

// Alarm is a fault of the deployment.
type Alarm struct {
	Kind Kind
	Name string // of the worker, consumer, queue or schedule; empty: the alarm is about the server, flows, or the number of other alarms
	Text string
}

// String returns the alarm as one line.
func (t Alarm) String() string {
	thing := map[Kind]string{Standby: "server", Server: "server", Tables: "tables", Worker: "worker", Consumer: "consumer", Builds: "consumer", Jobs: "worker of jobs", Overdue: "schedule", PausedSchedule: "schedule", Unadvanced: "flows"}[t.Kind]
	thing = cmp.Or(thing, "queue")
	if t.Name != "" {
		thing += " " + t.Name
	}
	return thing + ": " + t.Text
}

const (
	// silent is the maximum age of a living worker's heartbeat if the worker does not report
	// its HeartbeatTimeout. It is the default of WithHeartbeatTimeout.
	silent = 30 * time.Second

	// Late is how long due jobs and ticks of schedules may wait.
	Late = 5 * time.Minute

	most = 5 // maximum number of alarms of a kind
)

// IsSilent reports whether a worker counts as dead. Its heartbeat is older than its
// HeartbeatTimeout, or lies in the future, so that its age is unknown.
func IsSilent(w ops.Worker) bool {
	return w.HeartbeatAge < 0 || w.HeartbeatAge > cmp.Or(w.HeartbeatTimeout, silent)
}

// WorkerError is an error in a worker's Status.
type WorkerError struct{ Part, Text string }

// WorkerErrors returns the errors in a worker's Status.
func WorkerErrors(status json.RawMessage) (all []WorkerError) {
	var reported struct{ CoordinationError, FrontierError, NotifyError, LoopError string }
	_ = json.Unmarshal(status, &reported) // another library may have stored any JSON
	for _, c := range []WorkerError{{"coordination", reported.CoordinationError}, {"log", reported.FrontierError}, {"notify", reported.NotifyError}, {"loop", reported.LoopError}} {
		if c.Text != "" {
			all = append(all, c)
		}
	}
	return all
}

// ofWorkers returns the alarms about the Status of living workers. An error that several units
// of a consumer share is one alarm.
func ofWorkers(workers []ops.Worker, place func(ops.Worker) string) (all []Alarm) {
	all = sharedErrors(Worker, workers, WorkerErrors, place)
	var unitErrors []UnitError
	for _, w := range workers {
		if !IsSilent(w) {
			unitErrors = append(unitErrors, UnitErrors(w.Status)...)
		}
	}
	for _, s := range Share(unitErrors) {
		all = append(all, Alarm{Consumer, s.Name(), s.Message()})
	}
	return all
}

// sharedErrors returns alarms about the errors of living workers. An error that several workers
// share is one alarm.
func sharedErrors(kind Kind, workers []ops.Worker, of func(json.RawMessage) []WorkerError, place func(ops.Worker) string) (all []Alarm) {
	workers = slices.SortedFunc(slices.Values(workers), func(a, b ops.Worker) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), slices.Compare(a.ID[:], b.ID[:]))
	})
	var order []string // texts of the errors, in order
	first, others := map[string]string{}, map[string]int{}
	for _, w := range workers {
		if IsSilent(w) {
			continue
		}
		for _, e := range of(w.Status) {
			c := e.Part + ": " + errtext.Line(e.Text)
			if _, known := first[c]; known {
				others[c]++
				continue
			}
			first[c] = place(w)
			order = append(order, c)
		}
	}
	for _, c := range order {
		t := Alarm{kind, first[c], c}
		if n := others[c]; n > 0 {
			t.Text = fmt.Sprintf("%s (and of %d other workers)", c, n)
		}
		all = append(all, t)
	}
	return all
}

// short keeps the first alarms of each kind, and counts the others. Alarms of a kind are adjacent.
func short(all []Alarm) (list []Alarm) {
	for rest := all; len(rest) > 0; {
		kind := rest[0].Kind
		n := slices.IndexFunc(rest, func(t Alarm) bool { return t.Kind != kind })
		if n < 0 {
			n = len(rest)
		}
		list = append(list, rest[:min(n, most)]...)
		if n > most {
			list = append(list, Alarm{Kind: kind, Text: fmt.Sprintf("%d more", n-most)})
		}
		rest = rest[n:]
	}
	return list
}
