package sim

import (
	"fmt"
)

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

// CommandLine is the command line on which a program runs c again, if usual is
// what it does by itself. faults are for -faults; empty: the seed draws them.
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
