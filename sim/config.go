package sim

import (
	"fmt"
	"time"

	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// Config is what a person decides about a run; the seed decides the rest.
type Config struct {
	URL       string        // connection string of a server where databases may be created
	Workers   int           // 1 to 50
	Writers   int           // 1 to 200
	Consumers int           // 1 to 50; a third of them want some aggregate types only
	Duration  time.Duration // of the part with faults, 1s to 24h; up to twice that on a slow machine; copies of the server, setting up and coming to rest are added
	Seed      uint64        // 0 is a seed like any other
	Faults    Intensities   // nil: the seed draws them
	Server    Server        // the server of URL, if a run may crash it; nil: faults that need one are off
	Repeat    string        // the command that runs this again; empty: the one of cmd/sim
	Jobs      bool          // workers of jobs, in place of those of consumers, and enqueuers in place of writers

	// Bounds are how long the harness waits for what must come. The zero value is measured
	// before the run begins.
	Bounds harness.Bounds
	// Patience multiplies the bounds; 0 is 1. A run that was not judged is repeated with 2.
	Patience float64

	// Progress, if set, is called a few times a second, from one goroutine.
	Progress func(Progress)

	made *[]string // the names of its databases, for tests; nil: nobody asks
}

// DefaultConfig is a run of half a minute.
func DefaultConfig() Config {
	return Config{Workers: 5, Writers: 20, Consumers: 6, Duration: 22 * time.Second}
}

// Validate reports the first value out of range.
func (c Config) Validate() error {
	for _, n := range []struct {
		flag             string
		value, low, high int
	}{
		{"-workers", c.Workers, 1, 50},
		{"-writers", c.Writers, 1, 200},
		{"-consumers", c.Consumers, 1, 50},
	} {
		if n.value < n.low || n.value > n.high {
			return fmt.Errorf("%s %d is out of range, allowed is %d to %d", n.flag, n.value, n.low, n.high)
		}
	}
	if c.Duration < time.Second || c.Duration > 24*time.Hour {
		return fmt.Errorf("-duration %v is out of range, allowed is 1s to 24h", c.Duration)
	}
	return nil
}

// Server is a server that a run may kill and start again.
type Server = server.Server

// Progress is how far a run has come.
type Progress = stage.Progress

// command is the command line that runs c again.
func (c Config) command() string {
	if c.Repeat != "" {
		return c.Repeat
	}
	faults := ""
	if c.Faults != nil {
		faults = c.Faults.String()
	}
	if c.Jobs {
		return c.CommandLine("go run ./cmd/sim -jobs", DefaultConfig(), faults)
	}
	return c.CommandLine("go run ./cmd/sim", DefaultConfig(), faults)
}

// CommandLine is the command line with which a program runs c again. usual is the program's default
// configuration. faults are for -faults; empty: the seed draws them.
func (c Config) CommandLine(program string, usual Config, faults string) string {
	command := program
	for _, f := range []struct {
		name         string
		value, usual int
	}{{"workers", c.Workers, usual.Workers}, {"writers", c.Writers, usual.Writers}, {"consumers", c.Consumers, usual.Consumers}} {
		if f.value != f.usual {
			command += fmt.Sprintf(" -%s %d", f.name, f.value)
		}
	}
	if c.Duration != usual.Duration {
		command += fmt.Sprintf(" -duration %v", c.Duration)
	}
	if faults != "" {
		command += " -faults " + faults
	}
	return command + fmt.Sprintf(" -seed %d", c.Seed)
}
