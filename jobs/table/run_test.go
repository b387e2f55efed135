package table

import (
	"testing"
	"time"
)

// A claim that is not found on its own server is lost at once. On another server the claim is lost
// after a while.
func TestIsLost(t *testing.T) {
	t.Parallel()
	if r := (&run{server: "1"}); !r.isLost("1", time.Hour) {
		t.Error("not lost where it was made")
	}
	r := &run{server: "1"}
	if r.isLost("2", time.Hour) {
		t.Error("lost at once on another server")
	}
	if !r.isLost("2", 0) {
		t.Error("not lost after a while")
	}
}
