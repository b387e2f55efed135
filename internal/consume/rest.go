package consume

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
)

// signals are channels that are closed at the next change after they were taken.
type signals struct {
	frontier    <-chan struct{} // the frontier's value
	recovered   <-chan struct{} // the frontier's recovery
	assignments <-chan struct{} // the assignments, or the wanted number of partitions
	barrier     <-chan struct{} // a merge barrier
	callers     <-chan struct{} // another caller waits for the consumer
}

// restAfterFailure pauses. The pause ends early when others have moved the progress, as an operator
// does who skips the event, or if the database failed, when the frontier recovers.
func (n signals) restAfterFailure(intake context.Context, pause time.Duration, disturbed bool, moved <-chan struct{}) {
	if disturbed {
		moved = n.recovered
	}
	backoff.SleepUntil(intake, pause, moved)
}

// await waits for a signal, or until due, if that is not zero. It reports whether the loop
// is to load its progress again.
func (n signals) await(intake context.Context, due time.Time, reload <-chan struct{}) bool {
	var again <-chan time.Time
	if !due.IsZero() {
		timer := time.NewTimer(time.Until(due))
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-again:
	case <-n.frontier:
	case <-n.assignments:
	case <-n.barrier:
	case <-n.callers:
	case <-reload:
		return true
	case <-intake.Done():
	}
	return false
}

// reopenAfter is how many times in a row another server may answer a loop before the
// frontier reopens its connection.
const reopenAfter = 3

// overtakes counts the iterations of a loop that were overtaken.
type overtakes struct {
	inARow      int
	wrongServer bool // the status shows that another server has answered
}

// yield pauses before the progress is loaded again. A single refusal means that another
// worker or an operator moved the progress, and needs no pause. Repeated refusals mean that
// the assignment or the incarnation changed and this loop does not know yet. Without a
// pause the loop would load the server for nothing.
//
// wrongServer is store.ErrIncarnation if another server has answered. If that repeats, the
// frontier's own session may lead to the wrong server, so the frontier reopens its
// connection.
func (o *overtakes) yield(intake context.Context, back <-chan struct{}, f *frontier.Frontier, status *unitStatus, wrongServer error) {
	const first, limit = 10 * time.Millisecond, 250 * time.Millisecond
	o.inARow++
	if wrongServer != nil {
		f.Wake()
		if o.inARow > reopenAfter {
			status.setError(wrongServer)
			o.wrongServer = true
			f.Reopen()
		}
	}
	if o.inARow > 1 {
		backoff.SleepUntil(intake, backoff.Delay(o.inARow-1, first, limit, rand.Float64()), back)
	}
}
