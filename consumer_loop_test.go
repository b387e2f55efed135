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
				c := &consumerLoop{disturbed: test.disturbed}
				c.rest(t.Context(), time.Hour, back)
				if took := time.Since(began); took != test.want {
					t.Errorf("the pause took %v, want %v", took, test.want)
				}
			})
		})
	}
}
