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

// Where notifications come for what is new, and echoes for what is asked, nothing
// is wrong, however the log rests, is caught up with, or the connection changes.
func TestNotificationsThatArriveAreNoTrouble(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n notifyWatch
		h, head := hearing{connected: true, session: 1}, int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			switch rapid.IntRange(0, 5).Draw(t, "before the look") {
			case 0:
				h.connected = false
			case 1:
				h.connected, h.session = true, h.session+1
			case 2: // new events; the first look may come before their notification
				head += rapid.Int64Range(1, 1000).Draw(t, "events")
				if rapid.Bool().Draw(t, "late") {
					n.look(h, head)
				}
				h.events++
			case 3:
				head = max(head-rapid.Int64Range(0, 5).Draw(t, "back"), 0)
			}
			if n.look(h, head) {
				if n.asked(); h.connected {
					h.echoes++
				}
			}
			if err := n.verdict("c"); err != nil {
				t.Fatalf("after %+v: %v", n, err)
			}
		}
	})
}

// Events without notifications are noticed; so is an echo that does not come.
func TestNotificationsThatDoNotArriveAreNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		echoes bool
		want   string
	}{"nobody notifies": {true, "nobody notifies"}, "leads elsewhere": {false, "another database"}} {
		t.Run(name, func(t *testing.T) {
			var n notifyWatch
			h := hearing{connected: true, session: 1}
			for look := int64(1); look <= 4; look++ {
				if n.look(h, 100*look) {
					if n.asked(); c.echoes {
						h.echoes++
					}
				}
			}
			n.look(h, 400)
			if err := n.verdict("c"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the verdict is %v", err)
			}
			h.events++
			h.echoes++
			n.look(h, 500)
			if err := n.verdict("c"); err != nil {
				t.Errorf("after a notification the verdict is %v", err)
			}
		})
	}
}

// A worker says that nobody notifies its channel, or that it listens in another
// database, and that it is over when it is.
func TestWorkerSaysThatNotificationsDoNotArrive(t *testing.T) {
	t.Parallel()
	d, other := pgtest.New(t), pgtest.New(t)
	for name, c := range map[string]struct {
		listensAt string
		want      string
	}{"nobody notifies": {d.URL, `"worker_events"`}, "another database": {other.URL, "WithNotifyConnectionString"}} {
		t.Run(name, func(t *testing.T) {
			failed, over := make(chan error, 100), make(chan Recovery, 100)
			w := New(d.DB, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), []consumer.Consumer{thrifty{}},
				WithDispatcherStrategy(DispatcherStrategyNotify), WithNotifyConnectionString(c.listensAt),
				WithObserver(Observer{NotifyFailed: func(err error) { failed <- err }, Recovered: func(r Recovery) { over <- r }}))
			w.limits.notify = 200 * time.Millisecond
			done := make(chan error, 1)
			go func() { done <- w.Start(t.Context()) }()
			t.Cleanup(func() {
				w.Stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
			appends := func(channel string) {
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
			var err error
			for deadline := time.Now().Add(30 * time.Second); err == nil && time.Now().Before(deadline); {
				appends("unheard")
				select {
				case err = <-failed:
				case <-time.After(50 * time.Millisecond):
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("told was %v", err)
			}
			if s := w.Status(); s.NotifyError == nil || s.NotifyError.Error() != err.Error() {
				t.Errorf("Status says %v", s.NotifyError)
			}
			if name == "another database" {
				return
			}
			appends("worker_events")
			select {
			case r := <-over:
				if r.Trouble != TroubleNotify || r.Err == nil {
					t.Errorf("told was the end of %+v", r)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("waited in vain for the end of the trouble")
			}
			if err := w.Status().NotifyError; err != nil {
				t.Errorf("Status says %v", err)
			}
		})
	}
}
