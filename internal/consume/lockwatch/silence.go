package lockwatch

import (
	"context"
	"errors"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
)

const (
	// PollEvery is the pause between two polls of a session.
	PollEvery = time.Second
	// PollLimit is the time limit of such a poll. It uses another connection, which
	// may be dead, too.
	PollLimit = 2 * time.Second
)

// PollAfter calls poll after patience and then every PollEvery, until end is called.
// end waits for a running poll.
func PollAfter(ctx context.Context, patience time.Duration, poll func(ctx context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	timer := time.AfterFunc(patience, func() {
		defer close(done)
		for poll(ctx); backoff.Sleep(ctx, PollEvery); poll(ctx) {
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-done
		}
	}
}

// staleness decides whether a connection without an answer is dead. The zero value has no
// evidence.
type staleness struct {
	silent int       // polls in a row that found the session idle
	proof  time.Time // time of the last poll that found the session busy
}

// dead reports whether the connection is dead. A single idle poll is not enough: the
// statement or its answer may be in transit. Where no poll succeeds, limit decides.
func (v *staleness) dead(s Session, known bool, now time.Time, limit time.Duration) bool {
	switch {
	case known && (s.Busy || len(s.blockers) > 0):
		v.silent, v.proof = 0, now
	case known:
		v.silent++
	}
	return v.silent >= 2 || now.Sub(v.proof) >= limit
}

// errSilent is the error of a statement whose session is idle.
var errSilent = errors.New("the connection is dead: the server's session waits for a statement, or has ended")

// Read runs a read within limit. pid returns the pid of the read's session, or 0 while it is
// unknown. After patience, the read ends early if the server's session is idle, because then
// no answer will come.
func (q Sessions) Read(ctx context.Context, pid func() int64, patience, limit time.Duration, read func(ctx context.Context) error) error {
	inner, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	v := staleness{proof: time.Now()}
	defer PollAfter(inner, patience, func(ctx context.Context) {
		pid := pid()
		if pid == 0 {
			return
		}
		s, known := q.Poll(ctx, pid)
		if v.dead(s, known, time.Now(), limit) && ctx.Err() == nil {
			giveUp(errSilent)
		}
	})()
	return WithCause(inner, ctx, read(inner))
}
