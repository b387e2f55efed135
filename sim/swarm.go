package sim

import (
	"slices"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/intensity"
	"github.com/pgfrontier/worker/sim/oracle"
)

// kind is a kind of fault that a run can do.
type kind struct {
	name   string
	does   string
	counts []history.Fault // how it is counted: if it is on, one of them should happen
	always bool            // drawn by every seed: the oracle needs it
}

// kinds are all of them, in the order in which they are printed.
var kinds = []kind{
	{"crash", "ends a worker at once, in the middle of a batch or at its COMMIT", []history.Fault{history.Crashes, history.CommitCrashes, history.IdleCrashes}, false},
	{"vanish", "ends a worker and leaves its connections half open", []history.Fault{history.Vanished}, false},
	{"cut", "resets all connections of a worker, before a statement or a COMMIT, or after it", []history.Fault{history.Cuts}, false},
	{"slow", "takes the server far from a worker for a while, so that answers take up to 0.1s", []history.Fault{history.Slowed}, false},
	{"stall", "lets a worker hang past its time-outs, and come back as a zombie", []history.Fault{history.Stalls}, false},
	{"hole", "lets connections of a worker die in silence: nothing comes, and no error", []history.Fault{history.Swallowed}, false},
	{"restart", "stops a worker cleanly and starts another", []history.Fault{history.Restarts}, false},
	{"move", "assigns a consumer to another worker in the middle of a batch", []history.Fault{history.Flaps}, false},
	{"kill-batch", "ends the server's backend of a batch", []history.Fault{history.EndedBatches}, false},
	{"kill-lock", "ends the backend that holds a worker's or the leader's lock", []history.Fault{history.EndedLocks}, false},
	{"kill-scan", "ends the backend that a frontier looks through", []history.Fault{history.EndedScanners}, false},
	{"kill-listener", "ends the backend of a worker's listener", []history.Fault{history.EndedListeners}, false},
	{"notify-lost", "loses the notifications to a worker for a while", []history.Fault{history.LostLetters}, false},
	{"notify-late", "delays the notifications to a worker", []history.Fault{history.LateLetters}, false},
	{"unregister", "deletes a worker's registration", []history.Fault{history.Unregistered}, false},
	{"unassign", "deletes the assignment of a consumer", []history.Fault{history.Unassigned}, false},
	{"depose", "stalls the leader while what it assigns waits in the server", []history.Fault{history.Deposed}, false},
	{"deafen", "moves all consumers of a worker away, and keeps it from hearing of that", []history.Fault{history.Deafened}, false},
	{"error", "lets handlers fail", []history.Fault{history.HandlerErrors}, false},
	{"panic", "lets handlers panic", []history.Fault{history.HandlerPanics}, false},
	{"picky", "lets handlers fail at some events, unless they come first in their batch", []history.Fault{history.PickyHandlers}, false},
	{"contract", "lets handlers commit or roll back, or end their transaction and go on in another", []history.Fault{history.Breaches}, false},
	{"pause", "pauses a consumer for a moment, as an operator would", []history.Fault{history.Pauses}, false},
	{"reset", "sets a consumer back, as an operator would", []history.Fault{history.SetBack}, false},
	{"forward", "sets a paused consumer forward, past events", []history.Fault{history.SetForward}, false},
	{"skip", "lets a paused consumer leave an event out", []history.Fault{history.SkippedEvents}, false},
	{"server-crash", "kills the server with all its processes, in a batch or at its COMMIT", []history.Fault{history.ServerCrashes}, false},
	{"backend-crash", "kills a backend, for which the server kills all others and recovers", []history.Fault{history.BackendCrashes}, false},
	{"restore", "stops the server, copies its data, and puts the copy back some time later", []history.Fault{history.Restored}, false},
	{"standby", "leads connections of a worker to a standby that lags", []history.Fault{history.Lagging}, false},
	{"split", "promotes a standby beside the primary, and leads connections of a worker there", []history.Fault{history.Splits}, false},
	{"async-writers", "lets writers not wait for their commits to be safe, of which a crash may take some back", []history.Fault{history.AsyncCommits}, false},
	{"async-workers", "lets workers not wait for their commits to be safe", []history.Fault{history.AsyncWorkers}, false},
	{"rollback", "rolls appends back", []history.Fault{history.Rollbacks}, true},
	{"delay", "keeps transactions with positions open", []history.Fault{history.Delays}, false},
	{"redraw", "keeps transactions open and draws positions again", []history.Fault{history.LateDraws}, false},
	{"idle", "keeps transactions open, and draws a position in the end", []history.Fault{history.Idlers}, false},
	{"savepoint", "rolls appends back to a savepoint", []history.Fault{history.Savepoints}, false},
	{"stale", "appends with a version that the aggregate has left behind", []history.Fault{history.StaleVersions}, true},
	{"prepare", "prepares transactions and decides them later", []history.Fault{history.Prepared}, false},
	{"lose", "cuts writers off at their COMMIT", []history.Fault{history.LostCommits}, false},
}

// Intensities say which faults a run does, by name, and how much of each: 0 is
// none, 1 the usual, 2 twice as much.
type Intensities map[string]float64

// ofListeners are the faults that need the notify dispatcher: runs with one of
// them have it.
var ofListeners = []string{"kill-listener", "notify-lost", "notify-late"}

func (i Intensities) ofListeners() bool {
	return slices.ContainsFunc(ofListeners, func(name string) bool { return i[name] > 0 })
}

// AllFaults is every fault, as much of it as usual.
func AllFaults() Intensities { return intensity.All(faultNames()) }

// drawFaults draws about half of the faults, and how intense each is. Those
// of listeners are left out often enough for other dispatchers.
func drawFaults(seed uint64) Intensities {
	r, drawn := dice(seed, "faults"), Intensities{}
	for _, k := range kinds {
		on, factor := chance(r, 0.55), oneOf(r, 0.5, 1, 1, 2)
		if on || k.always {
			drawn[k.name] = factor
		}
	}
	if chance(r, 0.4) {
		for _, name := range ofListeners {
			delete(drawn, name)
		}
	}
	return drawn
}

// ParseFaults reads what String prints: "crash=1,cut=0.5", "all", or "none".
func ParseFaults(s string) (Intensities, error) { return intensity.Parse(s, faultNames()) }

// String is for -faults.
func (i Intensities) String() string { return intensity.Format(i, faultNames()) }

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

// struck lists the faults that are on, and how often each happened.
func (i Intensities) struck(happened func(history.Fault) int64) (all []oracle.Struck) {
	for _, k := range kinds {
		if i[k.name] == 0 {
			continue
		}
		s := oracle.Struck{Name: k.name, Intensity: i[k.name]}
		for _, f := range k.counts {
			s.Count += happened(f)
		}
		all = append(all, s)
	}
	return all
}
