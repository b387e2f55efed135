package consume

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/watchdog"
)

// The advice to skip the event is given only after a failure of the handler. After a
// missing privilege, the advice would lose an event.
func TestSkipIsAdvisedOnlyForHandlerFailure(t *testing.T) {
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

// Of many late consumers, the latest are named, and the others are counted.
func TestReadyNamesLatestConsumers(t *testing.T) {
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

// Ready names the transactions that hold consumers back, but not while their list is an old one: the
// sessions may be others by now.
func TestReadyNamesNoOldBlockers(t *testing.T) {
	s := observe.Status{State: observe.StateRunning, LastHeartbeat: time.Now(), SafeStill: time.Hour, Blocked: []observe.BlockingTransaction{{PID: 4711}}}
	for _, err := range []error{nil, errors.New("the log cannot be read")} {
		s.FrontierError = err
		all := reasons(s, time.Minute, time.Hour)
		if last := all[len(all)-1].Error(); strings.Contains(last, "4711") != (err == nil) || strings.Contains(last, "see FrontierError") != (err != nil) {
			t.Errorf("with the error %v of the frontier: %v", err, all)
		}
	}
}

// A loop may pause as long as its options allow. It counts as hanging some time later.
func TestPauseIsNotAHang(t *testing.T) {
	w := &health{
		env: &env{connections: connections{limits: limits{watchdog: time.Hour}}, reports: reports{observers: &runtime.Observers{}}, frontier: frontier.New(frontier.Config{})}, state: new(atomic.Value), watched: new(watchdog.Moment),
		cfg: &Config{DispatcherInterval: time.Minute, HeartbeatInterval: 3 * time.Hour, MaxPollInterval: 6 * time.Hour},
	}
	hanging := func(coordinated time.Time) error {
		w.coordinated = func() time.Time { return coordinated }
		return w.probe(0).Hanging()
	}
	w.state.Store(observe.StateRunning)
	for ago, hangs := range map[time.Duration]string{3 * time.Hour: "", 5 * time.Hour: "coordinates", 8 * time.Hour: "coordinates"} {
		at := time.Now().Add(-ago)
		w.watched.Set(at)
		if err := hanging(at); (err != nil) != (hangs != "") || err != nil && !strings.Contains(err.Error(), hangs) {
			t.Errorf("without a turn for %v: %v, want %q", ago, err, hangs)
		}
		if err := hanging(time.Now()); (err != nil) != (ago > 7*time.Hour) {
			t.Errorf("without a read of the consumers for %v: %v", ago, err)
		}
	}
	// The loops of a worker that does not run have ended and do not hang. A failed probe
	// would restart the process of a drained worker.
	for _, state := range []observe.State{observe.StateNew, observe.StateStarting, observe.StateDraining, observe.StateDrained, observe.StateStopped} {
		w.state.Store(state)
		if err := hanging(time.Now().Add(-8 * time.Hour)); err != nil {
			t.Errorf("a worker that is %s: %v", state, err)
		}
	}
}

// Reads from before a change of the incarnation or of the consumer's run are not used.
func TestReadsOfEarlierRunAreIgnored(t *testing.T) {
	a := newAges()
	a.recordHead("one", 7)
	if one, two := a.headOf("one"), a.headOf("two"); one != 7 || two != 0 {
		t.Errorf("the heads are %d and %d, want 7 and 0", one, two)
	}
	u := &unitStatus{known: true}
	u.recordOldest(oldest{})
	if u.oldest == nil {
		t.Error("a read of this run is lost")
	}
	u.begin()
	u.recordOldest(oldest{})
	if u.oldest != nil {
		t.Error("a read of the earlier run is kept")
	}
}

// A frontier whose session ends repeatedly restarts at the settled position each time.
// Reaching the same Safe again is no move.
func TestSafeStillSurvivesSessionRestart(t *testing.T) {
	a, began := newAges(), time.Now()
	for i, read := range []struct {
		token      string
		safe, head int64
		still      time.Duration
	}{
		{"one", 5, 9, 0}, {"one", 3, 9, time.Minute}, {"one", 5, 9, 2 * time.Minute}, {"one", 6, 9, 0},
		{"one", 4, 9, time.Minute}, {"two", 4, 9, 0}, {"two", 4, 9, time.Minute}, {"two", 9, 9, 0},
	} {
		if got := a.still(read.token, read.safe, read.head, began.Add(time.Duration(i)*time.Minute)); got != read.still {
			t.Errorf("read %d: still for %v, want %v", i, got, read.still)
		}
	}
}
