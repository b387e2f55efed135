package consume

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"

	"github.com/pgfrontier/worker/frontier"
)

// Only the failure of a handler is answered with the advice to skip the event: whoever
// followed it for a right that is missing would lose one.
func TestOnlyAFailedHandlerIsToSkip(t *testing.T) {
	age := time.Hour
	for text, c := range map[string]observe.ConsumerStatus{
		"handler: no customer": {LastError: errors.New("handler: no customer"), Failures: 1},
		"permission denied":    {LastError: errors.New("permission denied")},
	} {
		c.Name, c.Still, c.OldestAge = "c", age, &age
		all := reasons(observe.Status{State: observe.StateRunning, LastHeartbeat: time.Now(), Consumers: []observe.ConsumerStatus{c}}, time.Minute, time.Hour)
		if len(all) != 1 || !strings.Contains(all[0].Error(), text) || strings.Contains(all[0].Error(), "skip the event") != (c.Failures > 0) {
			t.Errorf("%s: %v", text, all)
		}
	}
}

// Of many consumers that are late, the latest ones are named, and the others are counted.
func TestTheLatestAreNamed(t *testing.T) {
	s := observe.Status{State: observe.StateRunning, LastHeartbeat: time.Now()}
	for i := range 13 {
		age := time.Duration(i+1) * time.Hour
		s.Consumers = append(s.Consumers, observe.ConsumerStatus{Name: fmt.Sprint("c", i), Still: time.Hour, OldestAge: &age})
	}
	all := reasons(s, time.Minute, time.Hour)
	if len(all) != 11 || !strings.Contains(all[0].Error(), `"c12"`) || !strings.Contains(all[9].Error(), `"c3"`) || !strings.HasPrefix(all[10].Error(), "3 more ") {
		t.Errorf("the reasons are %v", all)
	}
}

// A loop may pause for as long as the options say, and hangs some time later.
func TestLoopsMayPause(t *testing.T) {
	w := &Worker{observers: &runtime.Observers{}, frontier: frontier.New(frontier.Config{}), limits: limits{turn: time.Hour}, cfg: Config{DispatcherInterval: time.Minute, HeartbeatInterval: 3 * time.Hour, MaxPollInterval: 6 * time.Hour}}
	w.state.Store(observe.StateRunning)
	for ago, hangs := range map[time.Duration]string{3 * time.Hour: "", 5 * time.Hour: "coordinates", 8 * time.Hour: "coordinates"} {
		at := time.Now().Add(-ago)
		w.watched.Set(at)
		if err := w.hanging(at); (err != nil) != (hangs != "") || err != nil && !strings.Contains(err.Error(), hangs) {
			t.Errorf("without a turn for %v: %v, want %q", ago, err, hangs)
		}
		if err := w.hanging(time.Now()); (err != nil) != (ago > 7*time.Hour) {
			t.Errorf("without a look at the consumers for %v: %v", ago, err)
		}
	}
	// Of a worker that does not run, the loops have ended, and hang nowhere: a probe that said
	// otherwise would end the process that waits drained.
	for _, state := range []observe.State{observe.StateNew, observe.StateStarting, observe.StateDraining, observe.StateDrained, observe.StateStopped} {
		w.state.Store(state)
		if err := w.hanging(time.Now().Add(-8 * time.Hour)); err != nil {
			t.Errorf("a worker that is %s: %v", state, err)
		}
	}
}

// What was read before the server or the run of a consumer changed is not taken for what is now.
func TestOldLooksAreForgotten(t *testing.T) {
	a := newAges()
	a.sawHead("one", 7)
	if one, two := a.headOf("one"), a.headOf("two"); one != 7 || two != 0 {
		t.Errorf("the heads are %d and %d, want 7 and 0", one, two)
	}
	u := &unitStatus{known: true}
	u.sawOldest(oldest{})
	if u.oldest == nil {
		t.Error("a look of this run is forgotten")
	}
	u.begin()
	u.sawOldest(oldest{})
	if u.oldest != nil {
		t.Error("a look of the run before is kept")
	}
}

// A frontier whose session ends again and again falls back to what is settled each time. To
// come to the same place is no move.
func TestSafeThatComesBackHasNotMoved(t *testing.T) {
	a, began := newAges(), time.Now()
	for i, look := range []struct {
		token      string
		safe, head int64
		still      time.Duration
	}{
		{"one", 5, 9, 0}, {"one", 3, 9, time.Minute}, {"one", 5, 9, 2 * time.Minute}, {"one", 6, 9, 0},
		{"one", 4, 9, time.Minute}, {"two", 4, 9, 0}, {"two", 4, 9, time.Minute}, {"two", 9, 9, 0},
	} {
		if got := a.still(look.token, look.safe, look.head, began.Add(time.Duration(i)*time.Minute)); got != look.still {
			t.Errorf("look %d: still for %v, want %v", i, got, look.still)
		}
	}
}
