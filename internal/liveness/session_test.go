package liveness

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A session fails when two comparisons in a row, a heartbeat apart, find another server. After
// a crash, one connection may not have detected the crash yet.
func TestSessionOnAnotherServerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []bool{false, true, false, true, true}
		asked := 0
		s := &Session{Config: Config{HeartbeatInterval: time.Second, FailedOver: func(incarnation string) bool {
			if incarnation != "of a heartbeat" {
				t.Errorf("asked about %q", incarnation)
			}
			asked++
			return answers[asked-1]
		}}}
		for i := range answers {
			time.Sleep(time.Second)
			s.Beaten = time.Now()
			v := Self{Beat: true, incarnation: "of a heartbeat"}
			if err := s.locate(v); errors.Is(err, errFailover) != (i == len(answers)-1) {
				t.Errorf("comparison %d: %v", i, err)
			}
			time.Sleep(time.Second / 2)
			s.Beaten = time.Now() // before the heartbeat is due
			if err := s.locate(v); err != nil || asked != i+1 {
				t.Errorf("soon after comparison %d FailedOver was called %d times: %v", i, asked, err)
			}
			if err := s.locate(Self{}); err != nil || asked != i+1 {
				t.Errorf("after comparison %d, without a heartbeat, FailedOver was called %d times: %v", i, asked, err)
			}
		}
	})
}
