package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
)

// A worker is live unless it has stopped or a loop hangs. It is ready if it runs, the database
// answers, it is live and nothing else keeps it from its work. Each reason is one line.
func TestProbe(t *testing.T) {
	t.Parallel()
	silent, other := errors.New("no answer"), errors.New("another\nreason")
	idle, hangs := Loop{Name: "that is idle"}, Loop{"that claims", 2 * time.Minute}
	for _, c := range []struct {
		state  observe.State
		loops  []Loop
		answer error
		others []error
		live   string
		ready  string
	}{
		{observe.StateNew, []Loop{hangs}, silent, []error{other}, "", "the worker is new"},
		{observe.StateDraining, []Loop{hangs}, silent, []error{other}, "", "the worker is draining"},
		{observe.StateDrained, []Loop{hangs}, silent, []error{other}, "", "the worker is drained, as an operator has asked"},
		{observe.StateStopped, []Loop{hangs}, silent, []error{other}, "the worker has stopped", "the worker is stopped"},
		{observe.StateRunning, []Loop{idle, {"that is slow", time.Minute}}, nil, []error{nil}, "", ""},
		{observe.StateRunning, nil, silent, nil, "", "no answer"},
		{observe.StateRunning, []Loop{idle, hangs}, silent, []error{other, nil, other}, "the loop that claims has hung for 2m0s", "no answer; the loop that claims has hung for 2m0s; another; reason; another; reason"},
	} {
		p := Probe{
			State: func() observe.State { return c.state }, Loops: func() []Loop { return c.loops }, HangsAfter: time.Minute, Observers: NewObservers(observe.Worker{}, nil, nil),
			Answers: func(context.Context) error { return c.answer }, Reasons: func() []error { return c.others },
		}
		live := fmt.Sprint(p.Live())
		if p.Live() == nil {
			live = ""
		}
		if !strings.HasPrefix(live, c.live) || live != "" && c.live == "" {
			t.Errorf("%s: live says %q, want %q", c.state, live, c.live)
		}
		var ready []string
		for _, err := range p.Ready(t.Context()) {
			ready = append(ready, strings.Split(err.Error(), ":")[0])
		}
		if got := strings.Join(ready, "; "); !strings.HasPrefix(got, c.ready) || got != "" && c.ready == "" {
			t.Errorf("%s: ready says %q, want %q", c.state, got, c.ready)
		}
	}
}

// A worker that is drained while the probe asks the database is not ready.
func TestProbeOfAWorkerDrainedMeanwhile(t *testing.T) {
	t.Parallel()
	state := observe.StateRunning
	p := Probe{
		State: func() observe.State { return state }, Observers: NewObservers(observe.Worker{}, nil, nil),
		Answers: func(context.Context) error { state = observe.StateDraining; return nil },
	}
	if all := p.Ready(t.Context()); len(all) != 1 || !strings.HasPrefix(all[0].Error(), "the worker is draining") {
		t.Errorf("it is not ready for %v", all)
	}
}

// A worker whose observer does not return is not live.
func TestProbeOfAnObserverThatHangs(t *testing.T) {
	t.Parallel()
	called, leave := make(chan struct{}), make(chan struct{})
	o := NewObservers(observe.Worker{}, nil, []observe.Observer{func(observe.Event) { close(called); <-leave }})
	p := Probe{State: func() observe.State { return observe.StateRunning }, Loops: func() []Loop { return nil }, Observers: o}
	if err := p.Live(); err != nil {
		t.Errorf("before the call: %v", err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); o.Notify(observe.PoolTooSmall{}) }()
	<-called
	if err := p.Live(); err == nil || !strings.Contains(err.Error(), "the observer's PoolTooSmall") {
		t.Errorf("during the call: %v", err)
	}
	close(leave)
	<-ended
}

// The reasons that several kinds of workers have name the value and the remedy.
func TestReasons(t *testing.T) {
	t.Parallel()
	db, back := pgtest.Empty(t).OpenAway(t)
	if err := Answers(t.Context(), db, time.Minute); err == nil || !strings.Contains(err.Error(), "the database does not answer: check the address") {
		t.Errorf("the database is away: %v", err)
	}
	back()
	if err := Answers(t.Context(), db, time.Minute); err != nil {
		t.Errorf("the database is back: %v", err)
	}
	if err := LateHeartbeat(time.Now(), time.Hour, "have its jobs"); err != nil {
		t.Errorf("a new heartbeat: %v", err)
	}
	if err := LateHeartbeat(time.Now().Add(-2*time.Hour), time.Hour, "have its jobs"); err == nil || !strings.HasPrefix(err.Error(), "the last heartbeat was 2h0m0s ago, so other workers have its jobs (HeartbeatTimeout is 1h0m0s)") {
		t.Errorf("an old heartbeat: %v", err)
	}
	for lost, want := range map[int]string{0: "<nil>", 2: "<nil>", 3: `handlers that were given up keep all 3 slots of queue "q", the first since 1970-01-01 00:00:00Z`} {
		if err := LostSlots(lost, 3, ` of queue "q"`, time.Unix(0, 0)); !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("%d lost slots: %v, want %s", lost, err, want)
		}
	}
}
