package lockwatch

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Polls begin after the patience and continue, a second apart, until they are ended.
func TestPollAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var polls []time.Duration
		poll := func(context.Context) { polls = append(polls, time.Since(began)) }
		end := PollAfter(t.Context(), 5*time.Second, poll)
		time.Sleep(7*time.Second + time.Millisecond)
		end()
		if want := []time.Duration{5 * time.Second, 6 * time.Second, 7 * time.Second}; !slices.Equal(polls, want) {
			t.Errorf("polls after %v, want %v", polls, want)
		}
		PollAfter(t.Context(), time.Minute, func(context.Context) { t.Error("a poll after the end") })()
	})
}

// A connection is dead if two polls in a row find its session idle, or if no poll succeeds
// until the limit.
func TestStaleness(t *testing.T) {
	const limit = 10 * time.Second
	working, waiting, silent := Session{Busy: true}, Session{blockers: []blocker{{PID: 1}}}, Session{}
	type poll struct {
		after   time.Duration
		session Session
		known   bool
		want    bool
	}
	for name, polls := range map[string][]poll{
		"silent":             {{1, silent, true, false}, {1, silent, true, true}},
		"silent in between":  {{1, silent, true, false}, {1, working, true, false}, {1, silent, true, false}, {1, waiting, true, false}, {1, silent, true, false}},
		"waits for long":     {{limit, waiting, true, false}, {limit - 1, waiting, true, false}, {limit, waiting, true, false}},
		"works for long":     {{limit, working, true, false}, {limit, working, true, false}},
		"unknown":            {{1, silent, false, false}, {1, silent, false, false}, {limit - 3, silent, false, false}, {1, silent, false, true}},
		"unknown after work": {{limit, working, true, false}, {limit - 1, silent, false, false}, {1, silent, false, true}},
	} {
		now := time.Now()
		v := staleness{proof: now}
		for i, l := range polls {
			now = now.Add(l.after)
			if got := v.dead(l.session, l.known, now, limit); got != l.want {
				t.Errorf("%s: poll %d: dead: %v, want %v", name, i, got, l.want)
			}
		}
	}
}
