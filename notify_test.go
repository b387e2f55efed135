package worker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// aListener is a listening connection as a watch sees it. What is sent while it
// stands still comes when it goes on, in order.
type aListener struct {
	hearing
	still          bool
	events, echoes int // that wait for it to go on
}

// deliver gives it what has been sent, unless it stands still.
func (l *aListener) deliver() {
	if l.still || !l.connected {
		return
	}
	l.hearing.events += l.events
	l.hearing.echoes += l.echoes
	l.answers += l.events + l.echoes
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
		var n notifyWatch
		l, head := aListener{hearing: hearing{connected: true, session: 1}}, int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			switch rapid.IntRange(0, 6).Draw(t, "before the look") {
			case 0:
				l.connected = false
			case 1:
				l = aListener{hearing: hearing{connected: true, session: l.session + 1, events: l.hearing.events + 1, echoes: l.hearing.echoes + 1, answers: l.answers}}
			case 2:
				l.still = !l.still
			case 3: // new events; the look may come before their notification
				head += rapid.Int64Range(1, 1000).Draw(t, "events")
				if rapid.Bool().Draw(t, "late") {
					n.take(l.hearing, head, l.echo)
				}
				l.events++
			case 4: // of two writers, one does not notify
				head += rapid.Int64Range(1, 1000).Draw(t, "events of both")
				l.events++
			case 5:
				head = max(head-rapid.Int64Range(0, 5).Draw(t, "back"), 0)
			}
			if !l.still && l.connected && n.doubts() {
				l.answers++
			}
			l.deliver()
			n.take(l.hearing, head, l.echo)
			l.deliver()
			if err := n.verdict("c"); err != nil {
				t.Fatalf("after %+v: %v", n, err)
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
		want      string
	}{"nobody notifies": {false, "nobody notifies"}, "leads elsewhere": {true, "another database"}} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var n notifyWatch
				h, sent, head := hearing{connected: true, session: 1}, 0, int64(1)
				echo := func() bool { sent++; return true }
				n.take(h, head, echo)
				for grown, looks := 0, 1; looks < 20; looks++ {
					if rapid.Bool().Draw(t, "events") {
						head, grown = head+1, grown+1
					}
					if h.answers++; !c.elsewhere {
						h.echoes = sent
					}
					n.take(h, head, echo)
					err := n.verdict("c")
					if due := c.elsewhere && looks >= 2 || !c.elsewhere && grown >= silencesHeard; due != (err != nil) || due && !strings.Contains(err.Error(), c.want) {
						t.Fatalf("after %d looks, %d with events, the verdict is %v: %+v", looks, grown, err, n)
					}
				}
				h.events, h.echoes = h.events+1, sent
				n.take(h, head+1, echo)
				if err := n.verdict("c"); err != nil {
					t.Errorf("after a notification the verdict is %v", err)
				}
			})
		})
	}
}

// listening is a worker that is told of events at a connection string, and what
// it says about that.
type listening struct {
	*Worker
	failed chan error
	over   chan Recovery
}

func startListening(t *testing.T, d *pgtest.Database, listensAt string, look time.Duration) listening {
	t.Helper()
	l := listening{failed: make(chan error, 100), over: make(chan Recovery, 100)}
	l.Worker = New(d.DB, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), []consumer.Consumer{thrifty{}},
		WithDispatcherStrategy(DispatcherStrategyNotify), WithNotifyConnectionString(listensAt),
		WithObserver(Observer{NotifyFailed: func(err error) { l.failed <- err }, Recovered: func(r Recovery) { l.over <- r }}))
	l.limits.notify = look
	done := make(chan error, 1)
	go func() { done <- l.Start(t.Context()) }()
	t.Cleanup(func() {
		l.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// appendNotifying appends an event and notifies channel.
func appendNotifying(t *testing.T, d *pgtest.Database, channel string) {
	t.Helper()
	s := storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNotifyChannel(channel)))
	tx, err := d.DB.Begin()
	if err == nil {
		_, err = s.Append(t.Context(), tx, store.Any(), []store.Event{{AggregateType: "Order", AggregateID: "1", EventType: "Happened", EventID: uuid.New()}})
		err = errors.Join(err, tx.Commit())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// saysWhileAppending returns what the worker says first of notifications, while
// events come without a rest.
func (l listening) saysWhileAppending(t *testing.T, d *pgtest.Database, channel string) error {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		appendNotifying(t, d, channel)
		select {
		case err := <-l.failed:
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatal("waited in vain for the worker to say that notifications do not arrive")
	return nil
}

func (l listening) awaitOver(t *testing.T) {
	t.Helper()
	select {
	case r := <-l.over:
		if r.Trouble != TroubleNotify || r.Err == nil {
			t.Errorf("told was the end of %+v", r)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("waited in vain for the end of the trouble")
	}
	if err := l.Status().NotifyError; err != nil {
		t.Errorf("Status says %v", err)
	}
}

// A worker says that nobody notifies its channel, or that it listens in another
// database, also while the log is busy, and that it is over when it is.
func TestWorkerSaysThatNotificationsDoNotArrive(t *testing.T) {
	t.Parallel()
	d, other := pgtest.New(t), pgtest.New(t)
	for name, c := range map[string]struct {
		listensAt string
		want      string
	}{"nobody notifies": {d.URL, `"worker_events"`}, "another database": {other.URL, "WithNotifyConnectionString"}} {
		t.Run(name, func(t *testing.T) {
			// The frontier looks once a second: every look of the watch finds new events.
			l := startListening(t, d, c.listensAt, 1500*time.Millisecond)
			err := l.saysWhileAppending(t, d, "unheard")
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("told was %v", err)
			}
			if s := l.Status(); s.NotifyError == nil || s.NotifyError.Error() != err.Error() {
				t.Errorf("Status says %v", s.NotifyError)
			}
			if name == "nobody notifies" {
				appendNotifying(t, d, "worker_events")
				l.awaitOver(t)
			}
		})
	}
}
