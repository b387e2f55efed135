package backoff

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDelay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "first"))
		limit := time.Duration(rapid.Int64Range(int64(first), int64(24*time.Hour)).Draw(t, "limit"))
		n := rapid.IntRange(1, 1_000_000).Draw(t, "n")
		random := rapid.Float64Range(0, 0.999999).Draw(t, "random")
		d := Delay(n, first, limit, random)
		if d < first/2 || d > limit {
			t.Fatalf("%v is outside %v to %v", d, first/2, limit)
		}
		if next := Delay(n+1, first, limit, random); next < d {
			t.Fatalf("the pause shrank from %v to %v", d, next)
		}
		if n > 100 && d < limit/2 {
			t.Fatalf("%v after %d failures has not come near the limit %v", d, n, limit)
		}
	})
}
