package jobs

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// The session of the heartbeats and the pool are on two servers if both were read since the last
// failure and the results differ.
func TestHome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h home
		said := map[string]string{}
		last, moved := "", false // of the heartbeats, failures or not
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			at := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "start of the server")
			var differ bool
			switch who := rapid.SampledFrom([]string{"session", "pool", "failure"}).Draw(t, "who"); who {
			case "session":
				said[who], differ = at, h.isElsewhere(at)
				moved = moved || last != "" && last != at
				last = at
			case "pool":
				said[who], differ = at, h.found(at)
			default:
				h.forget()
				said = map[string]string{}
			}
			if want := len(said) == 2 && said["session"] != said["pool"]; differ != want {
				t.Fatalf("elsewhere: %v, want %v; said was %v", differ, want, said)
			}
			if rapid.Bool().Draw(t, "look for a move") {
				if got := h.hasMoved(); got != moved {
					t.Fatalf("moved: %v, want %v", got, moved)
				}
				moved = false
			}
		}
	})
}

// The server that was found before a failure of the session does not count: the new session may be
// on another server.
func TestFailedSessionForgetsTheServer(t *testing.T) {
	w := NewWorker(nil, NewHandlers())
	w.home.found("1")
	w.coordination().OnFailure(errors.New("the session ended"))
	if w.home.isElsewhere("2") {
		t.Error("the new session is taken for one on another server")
	}
}
