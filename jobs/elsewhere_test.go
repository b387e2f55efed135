package jobs

import (
	"testing"

	"pgregory.net/rapid"
)

// Two servers are told apart by what each of them said last, and one that was promoted
// just now has no token to say.
func TestHome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h home
		said := map[string]string{}
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			at := rapid.SampledFrom([]string{"", "old", "new"}).Draw(t, "incarnation")
			var differ bool
			switch who := rapid.SampledFrom([]string{"session", "pool", ""}).Draw(t, "who"); who {
			case "session":
				said[who], differ = at, h.isElsewhere(at)
			case "pool":
				said[who], differ = at, h.found(at)
			default:
				h.forget()
				said = map[string]string{}
			}
			if want := len(said) == 2 && said["session"] != said["pool"]; differ != want {
				t.Fatalf("elsewhere: %v, want %v; said was %v", differ, want, said)
			}
		}
	})
}
