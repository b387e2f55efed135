package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// errNotifyWrongDatabase reports that notifications sent on a connection of the pool do not
// arrive on the listening connection.
var errNotifyWrongDatabase = errors.New("worker: notifications do not arrive: WithNotifyConnectionString leads to another database than the worker's pool, or through a proxy that pools transactions: give it a direct connection to the database of the events")

// errNoNotifier reports that events are appended and no notification arrives.
func errNoNotifier(channel string) error {
	return fmt.Errorf("worker: events are appended but nothing notifies channel %q: make the stores that append with storepostgres.WithNotifyChannel(%q), or name their channel by WithNotifyChannel", channel, channel)
}

// listener is the state of the listening connection.
type listener struct {
	mu    sync.Mutex
	heard listen.Signals
	lost  error // why the connection was lost; nil: it is not lost
	found error // the latest verdict
	doubt bool  // echoes are missing
}

func (l *listener) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return l.lost
	}
	return l.found
}

func (l *listener) change(f func(*listener)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

func (l *listener) hearing() (h listen.Signals) {
	l.change(func(l *listener) { h = l.heard })
	return h
}

// echo returns the channel on which this worker notifies itself.
func (w *Worker) echo() string { return "worker_echo_" + w.id.String() }

// listen handles the notifications of the store and of the other workers.
func (w *Worker) listen(ctx context.Context) error {
	channels := map[string]func(string){
		w.cfg.NotifyChannel: func(string) {
			w.listener.change(func(l *listener) { l.heard.Notifications++ })
			w.onEventsNotification()
		},
		w.channel:     func(string) { w.onChangeNotification() },
		w.waitChannel: w.handleMessage,
		w.echo():      func(string) { w.listener.change(func(l *listener) { l.heard.Echoes++ }) },
	}
	lost := runtime.Subject{Condition: observe.ConditionNotify, Detail: "connection"}
	err := listen.Run(ctx, w.cfg.NotifyConnectionString, channels, listen.Health{
		Connected: func() {
			w.listener.change(func(l *listener) { l.lost, l.heard.Connected = nil, true; l.heard.Session++ })
			w.observers.End(lost)
		},
		Lost: func(err error) {
			err = errtext.Of(explain(err))
			w.listener.change(func(l *listener) { l.lost, l.heard.Connected = err, false })
			w.observers.Begin(lost, err)
			w.observers.Notify(observe.NotifyFailed{Worker: w.source(), Err: err})
		},
		Doubted: func() (doubt bool) {
			w.listener.change(func(l *listener) { doubt = l.doubt })
			return doubt
		},
		Answered: func() { w.listener.change(func(l *listener) { l.heard.Answers++ }) },
	})
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// watchNotify reports that notifications do not arrive although the listening connection is
// alive. It also reports when they arrive again.
func (w *Worker) watchNotify(ctx context.Context) {
	about := runtime.Subject{Condition: observe.ConditionNotify, Detail: "notifications"}
	var arrivals listen.Arrivals
	for reported := error(nil); backoff.Sleep(ctx, w.limits.notify); {
		head, _ := w.frontier.Head()
		arrivals.Check(w.listener.hearing(), head, func() bool { return w.sendEcho(ctx) })
		err := w.notifyError(arrivals.Verdict())
		w.listener.change(func(l *listener) { l.found, l.doubt = err, arrivals.Doubted() })
		switch {
		case err == nil:
			w.observers.End(about)
		case reported == nil || reported.Error() != err.Error():
			w.observers.Begin(about, err)
			w.observers.Notify(observe.NotifyFailed{Worker: w.source(), Err: err})
		}
		reported = err
	}
}

// notifyError returns the error of a verdict, with the remedy.
func (w *Worker) notifyError(v listen.Verdict) error {
	switch v {
	case listen.WrongServer:
		return errNotifyWrongDatabase
	case listen.NoSender:
		return errNoNotifier(w.cfg.NotifyChannel)
	}
	return nil
}

// sendEcho reports whether the worker could notify itself. If it could not, the database
// does not answer, which is another condition.
func (w *Worker) sendEcho(ctx context.Context) bool {
	err := w.bounded(ctx, w.limits.quick, func(ctx context.Context) error {
		_, err := w.db.ExecContext(ctx, `SELECT pg_notify($1::text, '')`, w.echo())
		return err
	})
	return err == nil
}
