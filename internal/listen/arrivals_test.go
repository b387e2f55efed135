package listen

import (
	"testing"

	"pgregory.net/rapid"
)

// aListener is a listening connection as Arrivals see it. What is sent while it
// stands still comes when it goes on, in order.
type aListener struct {
	Heard
	still          bool
	events, echoes int // that wait for it to go on
}

// deliver gives it what has been sent, unless it stands still.
func (l *aListener) deliver() {
	if l.still || !l.Connected {
		return
	}
	l.Heard.News += l.events
	l.Heard.Echoes += l.echoes
	l.Answers += l.events + l.echoes
	l.events, l.echoes = 0, 0
}

func (l *aListener) echo() (sent bool) {
	l.echoes++
	return true
}

// Where notifications come for what is new, and echoes for what is asked, nothing
// is wrong. It does not matter how the log rests, is appended to by others too,
// or is caught up with, nor that the connection changes or stands still.
func TestNotificationsThatArriveAreNoTrouble(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n Arrivals
		l, head := aListener{Heard: Heard{Connected: true, Session: 1}}, int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			switch rapid.IntRange(0, 6).Draw(t, "before the look") {
			case 0:
				l.Connected = false
			case 1:
				l = aListener{Heard: Heard{Connected: true, Session: l.Session + 1, News: l.Heard.News + 1, Echoes: l.Heard.Echoes + 1, Answers: l.Answers}}
			case 2:
				l.still = !l.still
			case 3: // new events; the look may come before their notification
				head += rapid.Int64Range(1, 1000).Draw(t, "events")
				if rapid.Bool().Draw(t, "late") {
					n.Check(l.Heard, head, l.echo)
				}
				l.events++
			case 4: // of two writers, one does not notify
				head += rapid.Int64Range(1, 1000).Draw(t, "events of both")
				l.events++
			case 5:
				head = max(head-rapid.Int64Range(0, 5).Draw(t, "back"), 0)
			}
			if !l.still && l.Connected && n.Doubted() {
				l.Answers++
			}
			l.deliver()
			n.Check(l.Heard, head, l.echo)
			l.deliver()
			if v := n.Verdict(); v != NoTrouble {
				t.Fatalf("after %+v: %v", n, v)
			}
		}
	})
}

// Events without notifications are noticed at the third look that finds some,
// however busy the log is. So are echoes that do not come though the connection
// answers.
func TestNotificationsThatDoNotArriveAreNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		elsewhere bool
		want      Verdict
	}{"nobody notifies": {false, Nobody}, "leads elsewhere": {true, Elsewhere}} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var n Arrivals
				h, sent, head := Heard{Connected: true, Session: 1}, 0, int64(1)
				echo := func() bool { sent++; return true }
				n.Check(h, head, echo)
				for grown, looks := 0, 1; looks < 20; looks++ {
					if rapid.Bool().Draw(t, "events") {
						head, grown = head+1, grown+1
					}
					if h.Answers++; !c.elsewhere {
						h.Echoes = sent
					}
					n.Check(h, head, echo)
					v := n.Verdict()
					if due := c.elsewhere && looks >= 2 || !c.elsewhere && grown >= silencesHeard; due != (v != NoTrouble) || due && v != c.want {
						t.Fatalf("after %d looks, %d with events, the verdict is %v: %+v", looks, grown, v, n)
					}
				}
				h.News, h.Echoes = h.News+1, sent
				n.Check(h, head+1, echo)
				if v := n.Verdict(); v != NoTrouble {
					t.Errorf("after a notification the verdict is %v", v)
				}
			})
		})
	}
}
