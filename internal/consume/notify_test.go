package consume

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// listening is a worker that listens at a connection string, with its reports about
// notifications.
type listening struct {
	*Worker
	failed chan error
	over   chan observe.Recovered
}

func startListening(t *testing.T, d *pgtest.Database, listensAt string, interval time.Duration) listening {
	t.Helper()
	l := listening{failed: make(chan error, 100), over: make(chan observe.Recovered, 100)}
	l.Worker = newWorker(d.DB, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), []consumer.Consumer{steppedConsumer{"all", nil, new(atomic.Bool)}},
		func(c *Config) { c.DispatcherStrategy = DispatcherStrategyNotify }, func(c *Config) { c.NotifyConnectionString = listensAt },
		func(c *Config) {
			c.Observers = append(c.Observers, observe.On(func(e observe.NotifyFailed) { err := e.Err; l.failed <- err }), observe.On(func(r observe.Recovered) { l.over <- r }))
		})
	l.listener.Every = interval
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

// saysWhileAppending returns the worker's first report about notifications, while events
// are appended continuously.
func (l listening) saysWhileAppending(t *testing.T, d *pgtest.Database, channel string) error {
	t.Helper()
	for deadline := time.Now().Add(pgtest.Patience); time.Now().Before(deadline); {
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
		if r.Condition != observe.ConditionNotify || r.Err == nil {
			t.Errorf("reported the end of %+v", r)
		}
	case <-time.After(pgtest.Patience):
		t.Fatal("waited in vain for the end of the condition")
	}
	if err := l.Status().NotifyError; err != nil {
		t.Errorf("Status says %v", err)
	}
}

// A worker reports that nothing notifies its channel, or that it listens in another
// database, also while the log is busy. It reports the end of either condition.
func TestReportsMissingNotifications(t *testing.T) {
	t.Parallel()
	d, other := pgtest.New(t), pgtest.New(t)
	for name, c := range map[string]struct {
		listensAt string
		want      string
	}{"no notifier": {d.URL, `"worker_events"`}, "another database": {other.URL, "WithNotifyConnectionString"}} {
		t.Run(name, func(t *testing.T) {
			// The frontier polls once a second, so every check of the watch finds new
			// events.
			l := startListening(t, d, c.listensAt, 1500*time.Millisecond)
			err := l.saysWhileAppending(t, d, "unheard")
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("reported %v", err)
			}
			if s := l.Status(); s.NotifyError == nil || s.NotifyError.Error() != err.Error() {
				t.Errorf("Status says %v", s.NotifyError)
			}
			if name == "no notifier" {
				appendNotifying(t, d, "worker_events")
				l.awaitOver(t)
			}
		})
	}
}
