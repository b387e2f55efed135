package schedule

import (
	"time"

	"github.com/pgfrontier/worker/internal/hooks"
)

// Observer is told what becomes of ticks, for metrics and alarms. Every field may be nil. Calls come
// from the Scheduler's goroutine: return soon. A panic, or runtime.Goexit, ends the call and not the
// Scheduler; the first of each hook is logged.
type Observer struct {
	// Ticked: this process has moved a schedule on from a tick that was due, and that is committed.
	Ticked func(Ticked)
	// TickFailed: the job of a tick that is due could not be enqueued. It is tried again.
	TickFailed func(TickFailure)
}

// Ticked is a tick of a schedule.
type Ticked struct {
	Schedule string
	Tick     time.Time     // the first that was due; of several that were missed, too
	Jobs     int           // that were enqueued; 0: the schedule is paused, CatchUp is 0, or jobs.Unique left the job out
	Late     time.Duration // from Tick until this process saw it, by the database's clock
	Took     time.Duration // until the commit, by this process's clock
}

// TickFailure is a tick whose job could not be enqueued.
type TickFailure struct {
	Schedule string
	Tick     time.Time
	Err      error
}

// WithObserver adds an Observer, before Start, and returns the Scheduler. The logger stays.
func (s *Scheduler) WithObserver(o Observer) *Scheduler {
	s.observers = append(s.observers, o)
	return s
}

// newVoice returns what tells the observers.
func (s *Scheduler) newVoice() *hooks.Voice[Observer] {
	return hooks.New(s.observers, func(_ *hooks.Voice[Observer], hook, value string) {
		s.logger.Error("hook panicked, going on; further panics of it are not logged", "hook", hook, "panic", value)
	})
}

// tellTicked tells that a schedule was moved on.
func (s *Scheduler) tellTicked(t Ticked) {
	hooks.Tell(s.voice, "Ticked", func(o *Observer) func(Ticked) { return o.Ticked }, t)
}

func (s *Scheduler) tellFailed(f TickFailure) {
	hooks.Tell(s.voice, "TickFailed", func(o *Observer) func(TickFailure) { return o.TickFailed }, f)
}
