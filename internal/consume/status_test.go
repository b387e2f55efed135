package consume

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
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

// The age of a handled event does not come back when the head moves on, and the log cannot be read.
// A later read of a waiting event counts.
func TestAgeOfAHandledEventEnds(t *testing.T) {
	u := (&spec{consumerName: "c"}).unit(partition.All)
	u.status.begin()
	u.status.assigned(true)
	u.status.loaded(&progress.State{Position: 5})
	u.status.recordOldest(oldest{store.Waiting{Position: 6, Age: time.Hour}, time.Now()})
	reads := &logReads{env: &env{unitSet: unitSet{units: []*unit{u}}}, ages: newAges(), log: storepostgres.NewStore(nil)}
	expect := func(head int64, behind bool, want time.Duration) {
		t.Helper()
		if units, _ := reads.behind(head); len(units) > 0 != behind {
			t.Errorf("at the head %d it is behind: %v", head, len(units) > 0)
		}
		if age := u.status.snapshot(&head, &head).OldestAge; age == nil || age.Truncate(time.Hour) != want {
			t.Errorf("at the head %d the age is %v, want %v", head, age, want)
		}
	}
	expect(7, true, time.Hour)
	u.status.advanced(7, 1, 0)
	expect(7, false, 0)
	expect(8, true, 0)
	u.status.recordOldest(oldest{store.Waiting{Position: 8, Age: 2 * time.Hour}, time.Now()})
	expect(7, false, 0) // a read of an older head
	expect(8, true, 2*time.Hour)
}

// While a batch waits or its handler is overdue, the status names the event in flight, or else the one
// at which the consumer is stuck.
func TestStuckWhileABatchGoesOn(t *testing.T) {
	var u unitStatus
	for _, c := range []struct{ inFlight, stuck, want int64 }{{7, 0, 7}, {7, 5, 7}, {0, 5, 5}} {
		u.change(func(s *observe.ConsumerStatus) { s.Stuck = c.stuck })
		u.setOngoing(ErrHandlerOverdue, c.inFlight)
		if s := u.snapshot(nil, nil); s.Stuck != c.want || s.LastError != ErrHandlerOverdue {
			t.Errorf("%+v: stuck at %d, %v", c, s.Stuck, s.LastError)
		}
	}
}
