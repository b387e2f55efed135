package sim

import "fmt"

// command is the command line that runs c again.
func (c Config) command() string {
	if c.Repeat != "" {
		return c.Repeat
	}
	d := DefaultConfig()
	command := "go run ./cmd/sim"
	for _, f := range []struct {
		name         string
		value, usual int
	}{{"workers", c.Workers, d.Workers}, {"writers", c.Writers, d.Writers}, {"consumers", c.Consumers, d.Consumers}} {
		if f.value != f.usual {
			command += fmt.Sprintf(" -%s %d", f.name, f.value)
		}
	}
	if c.Duration != d.Duration {
		command += fmt.Sprintf(" -duration %v", c.Duration)
	}
	if c.Faults != nil {
		command += " -faults " + c.Faults.String()
	}
	return command + fmt.Sprintf(" -seed %d", c.Seed)
}
