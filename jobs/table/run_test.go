package table

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/observe"
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

// A row whose outcome was refused shows until it is long due, if no other outcome is stored. Rows of
// other statements show until a round has tried them.
func TestRefusedOutcomesEnd(t *testing.T) {
	t.Parallel()
	c := newConditions(ident.Table{}, nil, nil)
	for what, want := range map[observe.Condition]int{observe.ConditionSettle: 1, observe.ConditionClaim: 2} {
		for id, since := range []time.Duration{0, 3 * time.Minute} {
			c.refused[what].Add(int64(id), errUnchanged, time.Now().Add(-since))
		}
		if refused, _, err := c.shown(what); refused != want || err == nil {
			t.Errorf("%s: %d rows, %v", what, refused, err)
		}
	}
}
