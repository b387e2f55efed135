package jobs

import (
	"errors"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/internal/queue"
)

// The pause between two polls doubles while they find nothing, from the first to the longest. The
// pause ends when a known job is due. It is the first pause again while a job waits, or if the poll
// may have missed jobs. A poll reads as far ahead as the next pause lasts.
func TestNextPoll(t *testing.T) {
	tier.Checks(t, 5000, 200_000)
	rapid.Check(t, func(t *rapid.T) {
		first := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "first"))
		p := jobrun.Polls{First: first, Longest: time.Duration(rapid.Int64Range(int64(first), int64(day)).Draw(t, "longest"))}
		want := first // the longest possible next pause
		for range rapid.IntRange(1, 40).Draw(t, "polls") {
			found, all := queue.Peek{None: rapid.Bool().Draw(t, "none"), Paused: rapid.Bool().Draw(t, "paused"), Capped: rapid.Bool().Draw(t, "capped")}, rapid.Bool().Draw(t, "all")
			ahead := p.Ahead()
			if ahead != want {
				t.Fatalf("a poll reads %v ahead, want %v", ahead, want)
			}
			if !found.None {
				found.Due = time.Duration(rapid.Int64Range(-int64(time.Hour), int64(ahead)).Draw(t, "due"))
			}
			waits := !found.None && !found.Paused && found.Due <= 0
			if !all || waits {
				want = first
			}
			pause, next := nextPoll(p, found, all, rapid.Float64Range(0, 0.999).Draw(t, "random"))
			low, high := want-want/4-1, want
			if !found.None && !found.Paused && found.Due > 0 {
				low, high = min(low, found.Due), min(high, found.Due)
			}
			if pause < low || pause > high || pause > ahead {
				t.Fatalf("after %+v the next poll is in %v, want %v to %v", found, pause, low, high)
			}
			if p = next; all && !waits {
				want = min(2*want, p.Longest)
			}
		}
	})
}

// By default the pause does not grow.
func TestPollsDoNotSlowDownByDefault(t *testing.T) {
	t.Parallel()
	w := &Worker{env: &env{observers: &runtime.Observers{}}, cfg: defaults()}
	w.slots = newSlots(0, 0, func() {})
	p := w.newLoop(queueConfig{"q", 1}).poller.polls
	for range 20 {
		var pause time.Duration
		if pause, p = nextPoll(p, queue.Peek{None: true}, true, 0); pause != time.Second {
			t.Fatalf("the next poll is in %v, want a second", pause)
		}
	}
}

// After a failure a loop requests notifications only when its pause is over, and sleeps until then.
func TestNoNotifyRequestInThePauseAfterAFailure(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := &poller{shared: &shared{cfg: &config{notify: "x"}, pausedTo: now.Add(time.Second)}, wantAt: now.Add(-time.Hour)}
	if p.wantDue(now) || !p.nextWant().Equal(p.pausedTo) || !p.wantDue(p.pausedTo) {
		t.Errorf("it asks in %v, want a second", p.nextWant().Sub(now))
	}
	if p.pausedTo = now.Add(-2 * time.Hour); !p.nextWant().Equal(p.wantAt) || !p.wantDue(now) {
		t.Errorf("without a pause it asks in %v, want an hour ago", p.nextWant().Sub(now))
	}
}

// Jobs that come back, and notifications that stop arriving, end a long pause. Notifications that
// were already down do not postpone the next poll for ever.
func TestEventsThatEndALongPause(t *testing.T) {
	t.Parallel()
	var listener runtime.Listener
	now := time.Now()
	p := &poller{shared: &shared{servedQueue: &servedQueue{woken: make(chan struct{}, 1)}}, isDown: listener.IsDown}
	rest := func() {
		p.polls, p.at = jobrun.Polls{First: time.Second, Longest: time.Hour, Quiet: 9}, now.Add(time.Hour)
	}
	check := func(what string, pause time.Duration, quiet int) {
		t.Helper()
		if p.handleNotices(now); p.at.Sub(now) != pause || p.polls.Quiet != quiet {
			t.Errorf("%s: the next poll is in %v after %d quiet ones, want %v after %d", what, p.at.Sub(now), p.polls.Quiet, pause, quiet)
		}
	}
	rest()
	check("while notifications arrive", time.Hour, 9)
	p.count(queue.Completed, false)
	check("after the end of a job", time.Hour, 9)
	p.count(queue.Available, true)
	check("after a job has failed, and is to be tried again", time.Second, 0)
	for _, what := range []string{"notifications have stopped", "notifications have stopped again"} {
		listener.ConnString = ""
		p.handleNotices(now)
		rest()
		listener.ConnString = "x" // no echo has arrived
		check(what, time.Second, 0)
		p.at = now.Add(time.Millisecond)
		check(what+", in the next turn", time.Millisecond, 0)
	}
}

// A peek that took long is not repeated at once. It does not delay the next poll either. While a job
// is refused, which peeks find and claims leave out, the next peek waits for the poll.
func TestSlowPeekDelaysNoPoll(t *testing.T) {
	const poll = 100 * time.Millisecond
	for _, c := range []struct {
		took    time.Duration
		refused bool
		found   int
		want    time.Duration
	}{
		{time.Millisecond, false, 0, 10 * time.Millisecond},
		{time.Second, false, 0, poll},
		{time.Millisecond, true, 0, poll},
		{time.Millisecond, true, 1, 10 * time.Millisecond},
	} {
		p := &poller{shared: &shared{cfg: &config{}}, polls: jobrun.Polls{First: poll, Longest: poll}, peekedAt: time.Now().Add(time.Minute), peekTook: c.took}
		if c.refused {
			p.refused.Add(7, errors.New("refused"), time.Now())
		}
		p.idle(t.Context(), c.found)
		if got := p.at.Sub(p.peekedAt); got != c.want {
			t.Errorf("%+v: the next peek is due in %v", c, got)
		}
	}
}
