package listen

import (
	"testing"

	"pgregory.net/rapid"
)

// aListener simulates a listening connection. While it is stopped, messages queue up, and
// arrive later in order.
type aListener struct {
	Signals
	still          bool
	events, echoes int // queued messages
}

// deliver delivers the queued messages unless the connection is stopped.
func (l *aListener) deliver() {
	if l.still || !l.Connected {
		return
	}
	l.Signals.Notifications += l.events
	l.Signals.Echoes += l.echoes
	l.Answers += l.events + l.echoes
	l.events, l.echoes = 0, 0
}

func (l *aListener) echo() (sent bool) {
	l.echoes++
	return true
}

// If notifications and echoes arrive, the verdict is Arriving. It does not matter whether the
// log is idle, has other writers, or is being caught up with. Neither does a new or stopped
// connection matter.
func TestVerdictIfNotificationsArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n Arrivals
		l, head := aListener{Signals: Signals{Connected: true, Session: 1}}, int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			switch rapid.IntRange(0, 6).Draw(t, "before the look") {
			case 0:
				l.Connected = false
			case 1:
				l = aListener{Signals: Signals{Connected: true, Session: l.Session + 1, Notifications: l.Signals.Notifications + 1, Echoes: l.Signals.Echoes + 1, Answers: l.Answers}}
			case 2:
				l.still = !l.still
			case 3: // new events; the check may come before their notification
				head += rapid.Int64Range(1, 1000).Draw(t, "events")
				if rapid.Bool().Draw(t, "late") {
					n.Check(l.Signals, head, l.echo)
				}
				l.events++
			case 4: // one of two writers does not notify
				head += rapid.Int64Range(1, 1000).Draw(t, "events of both")
				l.events++
			case 5:
				head = max(head-rapid.Int64Range(0, 5).Draw(t, "back"), 0)
			}
			if !l.still && l.Connected && n.Doubted() {
				l.Answers++
			}
			l.deliver()
			n.Check(l.Signals, head, l.echo)
			l.deliver()
			if v := n.Verdict(); v != Arriving {
				t.Fatalf("after %+v: %v", n, v)
			}
		}
	})
}

// Events without notifications are reported at the third check that finds new events, however
// many events there are. Missing echoes are reported if the connection answers.
func TestVerdictIfNotificationsAreMissing(t *testing.T) {
	for name, c := range map[string]struct {
		otherServer bool
		want        Verdict
	}{"nobody notifies": {false, NoSender}, "leads elsewhere": {true, WrongServer}} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var n Arrivals
				h, sent, head := Signals{Connected: true, Session: 1}, 0, int64(1)
				echo := func() bool { sent++; return true }
				n.Check(h, head, echo)
				for grown, checks := 0, 1; checks < 20; checks++ {
					if rapid.Bool().Draw(t, "events") {
						head, grown = head+1, grown+1
					}
					if h.Answers++; !c.otherServer {
						h.Echoes = sent
					}
					n.Check(h, head, echo)
					v := n.Verdict()
					if due := c.otherServer && checks >= 2 || !c.otherServer && grown >= silencesHeard; due != (v != Arriving) || due && v != c.want {
						t.Fatalf("after %d looks, %d with events, the verdict is %v: %+v", checks, grown, v, n)
					}
				}
				h.Notifications, h.Echoes = h.Notifications+1, sent
				n.Check(h, head+1, echo)
				if v := n.Verdict(); v != Arriving {
					t.Errorf("after a notification the verdict is %v", v)
				}
			})
		})
	}
}
