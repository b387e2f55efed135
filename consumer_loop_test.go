package worker

import (
	"testing"
	"testing/synctest"
	"time"
)

// What the database disturbed need not wait any longer once the frontier gets
// through again; what failed by itself has its pause.
func TestPauseEndsWhenTheFrontierIsBack(t *testing.T) {
	for name, test := range map[string]struct {
		disturbed int
		want      time.Duration
	}{
		"after a disturbance": {1, time.Second},
		"after a failure":     {0, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, back := time.Now(), make(chan struct{})
				time.AfterFunc(time.Second, func() { close(back) })
				c := &consumerLoop{tally: tally{disturbed: test.disturbed}}
				c.restAfterTrouble(t.Context(), time.Hour, news{back: back})
				if took := time.Since(began); took != test.want {
					t.Errorf("the pause took %v, want %v", took, test.want)
				}
			})
		})
	}
}

// A batch that the guard stops is tried again at once, since as a rule somebody
// else has moved the progress. What goes on being stopped waits for news.
func TestPauseWhileTheGuardRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &consumerLoop{}
		const times = 20
		began := time.Now()
		c.yield(t.Context(), nil, nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("after the first time there is a pause of %v, want none", took)
		}
		for range times - 1 {
			c.yield(t.Context(), nil, nil)
		}
		if took := time.Since(began); took < time.Second || took > times*250*time.Millisecond {
			t.Errorf("%d times took %v, want more than a second, at most 250ms each", times, took)
		}
		began = time.Now()
		back := make(chan struct{})
		close(back)
		c.yield(t.Context(), back, nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("the frontier is back, and the pause takes %v more", took)
		}
	})
}
