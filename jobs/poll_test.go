package jobs

import (
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
	p := newLoop(w, queueConfig{"q", 1}).polls
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
	l := &loop{w: &Worker{env: &env{observers: &runtime.Observers{}}, cfg: config{notify: "x"}}, wantAt: now.Add(-time.Hour), pausedTo: now.Add(time.Second)}
	if l.wantDue(now) || !l.nextWant().Equal(l.pausedTo) || !l.wantDue(l.pausedTo) {
		t.Errorf("it asks in %v, want a second", l.nextWant().Sub(now))
	}
	if l.pausedTo = now.Add(-2 * time.Hour); !l.nextWant().Equal(l.wantAt) || !l.wantDue(now) {
		t.Errorf("without a pause it asks in %v, want an hour ago", l.nextWant().Sub(now))
	}
}

// Jobs that come back, and notifications that stop arriving, end a long pause. Notifications that
// were already down do not postpone the next poll for ever.
func TestEventsThatEndALongPause(t *testing.T) {
	t.Parallel()
	w := &Worker{env: &env{observers: &runtime.Observers{}}, cfg: config{notify: "x"}}
	now := time.Now()
	l := &loop{w: w, woken: make(chan struct{}, 1)}
	rest := func() {
		l.polls, l.pollAt = jobrun.Polls{First: time.Second, Longest: time.Hour, Quiet: 9}, now.Add(time.Hour)
	}
	check := func(what string, pause time.Duration, quiet int) {
		t.Helper()
		if l.handleNotices(now); l.pollAt.Sub(now) != pause || l.polls.Quiet != quiet {
			t.Errorf("%s: the next poll is in %v after %d quiet ones, want %v after %d", what, l.pollAt.Sub(now), l.polls.Quiet, pause, quiet)
		}
	}
	rest()
	check("while notifications arrive", time.Hour, 9)
	l.count(queue.Completed, false)
	check("after the end of a job", time.Hour, 9)
	l.count(queue.Available, true)
	check("after a job has failed, and is to be tried again", time.Second, 0)
	for _, what := range []string{"notifications have stopped", "notifications have stopped again"} {
		w.listener.ConnString = ""
		l.handleNotices(now)
		rest()
		w.listener.ConnString = "x" // no echo has arrived
		check(what, time.Second, 0)
		l.pollAt = now.Add(time.Millisecond)
		check(what+", in the next turn", time.Millisecond, 0)
	}
}
