package fault

import (
	"maps"
	"slices"

	"github.com/pgfrontier/worker/sim/oracle"
)

// Server is what a server can do that some faults need.
type Server struct {
	Own      bool // it is the run's own, and may be crashed
	Prepares bool // transactions
	Notices  bool // that an idle connection is half open
	Readable bool // nobody encrypts the connections
	Leads    bool // a standby can follow it
}

// Need is what a fault needs of the server.
type Need struct {
	met  func(Server) bool
	says oracle.Line // in the report where it is not met; empty: nothing
}

// The needs that there are.
var (
	Preparing = &Need{func(s Server) bool { return s.Prepares },
		oracle.Line{Name: "not prepared", Value: "no transaction: the server's max_prepared_transactions is 0"}}
	Noticing = &Need{func(s Server) bool { return s.Notices },
		oracle.Line{Name: "not half open", Value: "no connection: PostgreSQL 13 would not notice while the run lasts"}}
	Readable = &Need{func(s Server) bool { return s.Readable },
		oracle.Line{Name: "not lost", Value: "or delayed, any notification: the connections are encrypted"}}
	OwnServer = &Need{func(s Server) bool { return s.Own },
		oracle.Line{Name: "not crashed", Value: "the server: it is not the run's own"}}
	Replicating = &Need{met: func(s Server) bool { return s.Leads }}
)

// Able leaves out the faults that a server cannot do.
func (t Table) Able(chosen map[string]float64, s Server) map[string]float64 {
	left := maps.Clone(chosen)
	for _, r := range t {
		if slices.ContainsFunc(r.Needs, func(n *Need) bool { return !n.met(s) }) {
			delete(left, r.Name)
		}
	}
	return left
}

// Unmet returns what a report says of the needs that a server does not meet, each once.
func (t Table) Unmet(s Server) (all []oracle.Line) {
	for _, r := range t {
		for _, n := range r.Needs {
			if !n.met(s) && n.says.Name != "" && !slices.Contains(all, n.says) {
				all = append(all, n.says)
			}
		}
	}
	return all
}
