package subprocess

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestKeepsTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Tail
		var all strings.Builder
		for _, n := range rapid.SliceOf(rapid.IntRange(0, 2*most)).Draw(t, "writes") {
			p := strings.Repeat(string(rune('a'+n%26)), n)
			all.WriteString(p)
			if written, err := b.Write([]byte(p)); written != n || err != nil {
				t.Fatalf("wrote %d of %d bytes; %v", written, n, err)
			}
		}
		want := all.String()
		if want = want[max(0, len(want)-most):]; b.String() != want {
			t.Fatalf("kept %d bytes, want the last %d", len(b.String()), len(want))
		}
	})
}
