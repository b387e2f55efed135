package consume

import (
	"testing"

	"github.com/pgfrontier/worker/internal/progress"
)

// A consumer that another worker has moved has no lag until it is loaded again.
func TestLagWaitsForTheLoad(t *testing.T) {
	var u unitStatus
	safe := int64(7)
	lag := func() *int64 { return u.snapshot(&safe, nil).Lag }
	u.assigned(true)
	if l := lag(); l != nil {
		t.Errorf("before the first load the lag is %d", *l)
	}
	u.loaded(&progress.State{Position: 5})
	if l := lag(); l == nil || *l != 2 {
		t.Errorf("after the load the lag is %v, want 2", l)
	}
	u.assigned(false)
	if l := lag(); l != nil {
		t.Errorf("while another worker runs it, the lag is %d", *l)
	}
	u.begin()
	u.assigned(true)
	if l := lag(); l != nil {
		t.Errorf("before it was loaded again the lag is %d", *l)
	}
}
