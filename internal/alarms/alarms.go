// Package alarms lists what is wrong with a deployment, a line for each thing: what
// pgfrontier status and top show, and the overview of the console. It has what no list of
// consumers shows: errors of the workers, a server that takes no writes or no connection, tables of a
// newer version, builds that differ, and jobs.
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

// Kind says what an alarm is about.
type Kind string

// The kinds, in the order of a list.
const (
	Standby  Kind = "standby"  // the server only reads
	Server   Kind = "server"   // workers may not write, or not connect
	Tables   Kind = "tables"   // of a newer version
	Worker   Kind = "worker"   // one that lives complains
	Consumer Kind = "consumer" // it, or a unit of it, has a last error
	Builds   Kind = "builds"   // of workers differ in what they do with a consumer
	Jobs     Kind = "jobs"     // a worker of jobs complains, or is silent
	Paused   Kind = "paused"   // a queue
	Due      Kind = "due"      // jobs of a queue that do not run
	Failed   Kind = "failed"   // jobs of a queue, for good, that nobody has acknowledged
	Overdue  Kind = "overdue"  // a schedule

	PausedSchedule Kind = "paused-schedule"
	Unadvanced     Kind = "unadvanced" // runs of flows that no worker advances
)

// Alarm is a thing that is wrong.
type Alarm struct {
	Kind Kind
	Name string // of the worker, the consumer, the queue or the schedule; empty: of the server, of flows, or of others besides
	Says string
}

// String is one line.
func (t Alarm) String() string {
	thing := map[Kind]string{Standby: "server", Server: "server", Tables: "tables", Worker: "worker", Consumer: "consumer", Builds: "consumer", Jobs: "worker of jobs", Overdue: "schedule", PausedSchedule: "schedule", Unadvanced: "flows"}[t.Kind]
	thing = cmp.Or(thing, "queue")
	if t.Name != "" {
		thing += " " + t.Name
	}
	return thing + ": " + t.Says
}

const (
	// silent is after what age of its heartbeat a worker is taken for dead that does not say its
	// HeartbeatTimeout: the default of WithHeartbeatTimeout.
	silent = 30 * time.Second

	// Late is what jobs that are due, and ticks of schedules, may wait.
	Late = 5 * time.Minute

	most = 5 // of a kind
)

// IsSilent reports whether a worker counts as dead: its heartbeat is older than its
// HeartbeatTimeout, or lies in the future, so that the age of the heartbeat is unknown.
func IsSilent(w ops.Worker) bool {
	return w.HeartbeatAge < 0 || w.HeartbeatAge > cmp.Or(w.HeartbeatTimeout, silent)
}

// Complaint is an error in what a worker said of itself.
type Complaint struct{ Part, Text string }

// Complaints are those in a worker's Status.
func Complaints(status json.RawMessage) (all []Complaint) {
	var said struct{ CoordinationError, FrontierError, NotifyError, LoopError string }
	_ = json.Unmarshal(status, &said) // of another library it may be anything
	for _, c := range []Complaint{{"coordination", said.CoordinationError}, {"log", said.FrontierError}, {"notify", said.NotifyError}, {"loop", said.LoopError}} {
		if c.Text != "" {
			all = append(all, c)
		}
	}
	return all
}

// ofWorkers are the complaints in what living workers said of themselves. An error that units of
// a consumer have in common is one alarm.
func ofWorkers(workers []ops.Worker, place func(ops.Worker) string) (all []Alarm) {
	all = complaining(Worker, workers, Complaints, place)
	var troubles []Trouble
	for _, w := range workers {
		if !IsSilent(w) {
			troubles = append(troubles, Troubles(w.Status)...)
		}
	}
	for _, s := range Share(troubles) {
		all = append(all, Alarm{Consumer, s.Name(), s.Says()})
	}
	return all
}

// complaining are the complaints of living workers. One that several have is one alarm.
func complaining(kind Kind, workers []ops.Worker, of func(json.RawMessage) []Complaint, place func(ops.Worker) string) (all []Alarm) {
	workers = slices.SortedFunc(slices.Values(workers), func(a, b ops.Worker) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), slices.Compare(a.ID[:], b.ID[:]))
	})
	var order []string // the complaints
	first, others := map[string]string{}, map[string]int{}
	for _, w := range workers {
		if IsSilent(w) {
			continue
		}
		for _, complaint := range of(w.Status) {
			c := complaint.Part + ": " + errtext.Line(complaint.Text)
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
			t.Says = fmt.Sprintf("%s (and of %d other workers)", c, n)
		}
		all = append(all, t)
	}
	return all
}

// short leaves the first of each kind, which stand together, and counts the others.
func short(all []Alarm) (list []Alarm) {
	for rest := all; len(rest) > 0; {
		kind := rest[0].Kind
		n := slices.IndexFunc(rest, func(t Alarm) bool { return t.Kind != kind })
		if n < 0 {
			n = len(rest)
		}
		list = append(list, rest[:min(n, most)]...)
		if n > most {
			list = append(list, Alarm{Kind: kind, Says: fmt.Sprintf("%d more", n-most)})
		}
		rest = rest[n:]
	}
	return list
}
