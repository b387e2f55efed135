//go:build unix

package chaos

import (
	"slices"

	"github.com/pgfrontier/worker/sim/oracle"
)

var (
	eventFaults faultRows = slices.Concat(processRows, contractRows, operatorRows, serverRows, restoreRows)
	jobFaults   faultRows = slices.Concat(processRows, leaderRows, deployRows, serverRows, terminateRows)
)

// rows are the faults that a run may have.
func (c Config) rows() faultRows {
	if c.Jobs {
		return jobFaults
	}
	return eventFaults
}

// AllFaults is every fault of a run of events, as much of it as usual.
func AllFaults() Faults { return eventFaults.table().All() }

// ParseFaults reads "kill=1,promote=0.5", "all" or "none", for a run of events.
func ParseFaults(s string) (Faults, error) { return eventFaults.table().Parse(s) }

// ParseJobFaults does the same for a run of jobs.
func ParseJobFaults(s string) (Faults, error) { return jobFaults.table().Parse(s) }

// FaultTable is the faults of a run of events as a person reads them.
func FaultTable() []oracle.Line { return eventFaults.table().Lines() }

// JobFaultTable is those of a run of jobs.
func JobFaultTable() []oracle.Line { return jobFaults.table().Lines() }
