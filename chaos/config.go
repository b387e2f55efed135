//go:build unix

package chaos

import (
	"time"

	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Config is what a person decides about a run; the seed decides the rest.
type Config struct {
	Workers   int           // processes, 1 to 50
	Writers   int           // 1 to 200, in this process
	Consumers int           // 1 to 50; a third of them want some aggregate types only
	Duration  time.Duration // of the part with faults, 1s to 24h; setting up and coming to rest are added
	Seed      uint64
	Faults    Faults // nil: the seed draws how intense each is
	Jobs      bool   // workers of jobs, in place of those of consumers, and enqueuers in place of writers

	// Program is the command of a worker process, which is to call Worker.
	Program []string
	// Ahead, if set, is that of the first one in place of Program: the same, with a clock
	// that is an hour ahead.
	Ahead []string
	// Patience is how many times as long the harness waits; 0 is 1. A run that was not
	// judged is repeated with 2.
	Patience float64
	// Judged, if set, is told the report while the servers and what they have
	// written to their logs are still there.
	Judged func(*oracle.Report, []bundle.Log) error
	// Progress, if set, is called a few times a second, from one goroutine.
	Progress func(sim.Progress)
}

// DefaultConfig is a run of ten minutes.
func DefaultConfig() Config {
	return Config{Workers: 5, Writers: 8, Consumers: 6, Duration: 10 * time.Minute}
}

// Enough is how long a run must be for every fault that is on to happen.
const Enough = 10 * time.Minute

// sim is what the simulation knows of a run.
func (c Config) sim() sim.Config {
	same := c.sameAs()
	faults := ""
	if c.Faults != nil {
		faults = c.rows().table().Format(c.Faults)
	}
	// Writers, enqueuers, handlers and operators do everything that they can.
	program := "go run ./cmd/chaos"
	if c.Ahead != nil {
		program += " -ahead"
	}
	same.Faults = sim.Faults(false).All()
	if c.Jobs {
		program += " -jobs"
		same.Faults = sim.Faults(true).All()
		same.Faults["linger"] = 8 // so that a process that is killed has jobs in flight
		same.Faults["pause"] = 0.3
	}
	same.Repeat = same.CommandLine(program, DefaultConfig().sameAs(), faults)
	same.Progress = c.Progress
	return same
}

// sameAs is what both are told in the same way.
func (c Config) sameAs() sim.Config {
	return sim.Config{Workers: c.Workers, Writers: c.Writers, Consumers: c.Consumers, Duration: c.Duration, Seed: c.Seed, Jobs: c.Jobs}
}

// Validate reports the first value out of range.
func (c Config) Validate() error { return c.sim().Validate() }
