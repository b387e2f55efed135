//go:build unix

package chaos

import (
	"math/rand/v2"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/intensity"
	"github.com/pgfrontier/worker/sim/oracle"
)

// The faults, as they are counted and printed.
const (
	FailedStarts  history.Fault = "worker processes that could not start, replaced"
	ServerKills   history.Fault = "servers killed and restarted"
	BackendKills  history.Fault = "backends killed, so that the server restarted itself"
	FullDisks     history.Fault = "disks full"
	FullDiskEnds  history.Fault = "of these, that ended the server"
	LimitsReached history.Fault = "times that all connections were taken"
	Promotions    history.Fault = "primaries killed and replicas promoted"
	Lags          history.Fault = "times that a worker process was led to a lagging replica"
	Restores      history.Fault = "primaries set back to a cold copy"
)

var counted = []history.Fault{history.Killed, history.Stopped, history.Swallowed, history.Breaches, FailedStarts, ServerKills, BackendKills, FullDisks, FullDiskEnds, LimitsReached, Promotions, Lags, Restores}

// kind is a kind of fault.
type kind struct {
	name, does string
	count      history.Fault
	worker     bool // strikes a worker process; otherwise the server
}

var kinds = []kind{
	{"kill", "SIGKILL for a worker process at a random moment; another takes its place", history.Killed, true},
	{"stop", "SIGSTOP for a worker process past its time-outs, then SIGCONT: a zombie", history.Stopped, true},
	{"hole", "half of a worker process's connections die in silence: they swallow what both sides send, without an error", history.Swallowed, true},
	{"contract", "a handler of a worker process commits, rolls back or chains its transaction; the process ends with the error for that, and another takes its place", history.Breaches, true},
	{"server-kill", "SIGKILL for the server and all its processes, or an immediate shutdown; then it is restarted", ServerKills, false},
	{"backend-kill", "SIGKILL for one backend: the server restarts itself", BackendKills, false},
	{"full-disk", "the server's disk is full for a moment", FullDisks, false},
	{"connection-limit", "all connections that max_connections leaves are taken, and some broken that would come again", LimitsReached, false},
	{"promote", "the primary is killed and its streaming replica promoted; workers and writers follow", Promotions, false},
	{"standby", "new connections of a worker process lead to the replica, which lags, for a while; those that do stay there", Lags, false},
	{"restore", "a cold copy of the primary is put back under running workers", Restores, false},
}

// Faults say which kinds of faults are on, by name, and how intense: 0 is none,
// 1 the usual, 2 twice as often in comparison.
type Faults map[string]float64

// AllFaults is every kind, as much of it as usual.
func AllFaults() Faults { return intensity.All(faultNames()) }

// drawFaults has every kind: a run is long.
func drawFaults(r *rand.Rand) Faults {
	drawn := Faults{}
	for _, k := range kinds {
		drawn[k.name] = []float64{0.5, 1, 1, 2}[r.IntN(4)]
	}
	return drawn
}

// ParseFaults reads what String prints: "kill=1,promote=0.5", "all" or "none".
func ParseFaults(s string) (Faults, error) { return intensity.Parse(s, faultNames()) }

// String is for -faults.
func (f Faults) String() string { return intensity.Format(f, faultNames()) }

func faultNames() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// FaultTable is the kinds of faults as a person reads them.
func FaultTable() (lines []oracle.Line) {
	for _, k := range kinds {
		lines = append(lines, oracle.Line{Name: k.name, Value: k.does})
	}
	return lines
}

// deck deals faults like cards: each comes up before any comes again, more
// often the more intense it is.
type deck struct {
	faults Faults
	worker bool // for a worker process, otherwise for the server
	dice   *rand.Rand
	cards  []string
}

// deal draws the next fault; empty: there is none for now.
func (d *deck) deal() (name string) {
	if len(d.cards) == 0 {
		for _, k := range kinds {
			if k.worker != d.worker {
				continue
			}
			n := 2 * d.faults[k.name] // 0.5 is a card
			times := int(n)
			if d.dice.Float64() < n-float64(times) {
				times++
			}
			d.cards = append(d.cards, slices.Repeat([]string{k.name}, times)...)
		}
		d.dice.Shuffle(len(d.cards), func(i, j int) { d.cards[i], d.cards[j] = d.cards[j], d.cards[i] })
	}
	if len(d.cards) == 0 {
		return ""
	}
	name, d.cards = d.cards[0], d.cards[1:]
	return name
}
