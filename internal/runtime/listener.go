package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/observe"
)

// EchoEvery is the usual [Listener.Every].
const EchoEvery = 5 * time.Second

// The two conditions of a Listener. The connection is lost, or no notifications arrive on it.
var (
	connectionLost = Subject{Condition: observe.ConditionNotify, Detail: "connection"}
	notifiedNot    = Subject{Condition: observe.ConditionNotify, Detail: "notifications"}
)

// Listener is the listening connection of a worker. It reports when notifications stop
// arriving, and when they arrive again. An echo is a notification that the worker sends to
// itself. The fields must not change after Run.
type Listener struct {
	Package    string        // the prefix of errors
	Of         string        // what the database has: "events" or "jobs"
	ConnString string        // of the listening connection; empty: the worker does not listen
	Echo       string        // the channel of the echoes
	Every      time.Duration // the pause between two checks, longer than an echo takes
	EchoAgain  int           // an arrived echo proves the connection for so many checks; 0: for ever
	NoSender   error         // the error if writers commit without a notification
	Observers  *Observers

	Exec func(ctx context.Context, query string, args ...any) error // on a connection of the pool
	Head func() int64                                               // the head of [listen.Arrivals]; nil: unknown
	Down func()                                                     // called in each check, and after a loss, while notifications may not arrive; may be nil

	mu     sync.Mutex
	heard  listen.Signals
	echoed bool  // an echo has arrived on this connection
	lost   error // why the connection is lost; nil: it is not
	silent error // why no notifications arrive on the connection; nil: they arrive
	doubt  bool  // an echo is overdue
}

func (l *Listener) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// Err returns why notifications do not arrive. It returns nil while they arrive.
func (l *Listener) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return l.lost
	}
	return l.silent
}

// IsDown reports whether notifications are expected but not known to arrive.
func (l *Listener) IsDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ConnString != "" && (!l.echoed || l.doubt || l.silent != nil)
}

// Notified records a notification that a writer has sent at its COMMIT.
func (l *Listener) Notified() { l.change(func() { l.heard.Notifications++ }) }

// Run calls the functions of the channels as [listen.Run] does, until ctx ends.
func (l *Listener) Run(ctx context.Context, channels map[string]func(payload string)) error {
	channels = maps.Clone(channels)
	channels[l.Echo] = func(string) { l.change(func() { l.heard.Echoes++; l.echoed = true }) }
	err := listen.Run(ctx, l.ConnString, channels, listen.Health{
		Connected: func() {
			l.change(func() { l.lost, l.heard.Connected, l.echoed = nil, true, false; l.heard.Session++ })
			l.Observers.End(connectionLost)
		},
		Lost: func(err error) {
			err = errtext.Of(Explain(l.Package, err))
			l.change(func() { l.lost, l.heard.Connected, l.echoed = err, false, false })
			l.down()
			l.report(connectionLost, err)
		},
		Doubted: func() (doubt bool) {
			l.change(func() { doubt = l.doubt })
			return doubt
		},
		Answered: func() { l.change(func() { l.heard.Answers++ }) },
	})
	if err != nil {
		return fmt.Errorf("%s: %w", l.Package, err)
	}
	return nil
}

// Watch checks until ctx ends whether notifications arrive.
func (l *Listener) Watch(ctx context.Context) {
	var arrivals listen.Arrivals
	var reported error
	for checks := 0; backoff.Sleep(ctx, l.Every); checks++ {
		var head int64
		if l.Head != nil {
			head = l.Head()
		}
		arrivals.Check(l.signals(checks), head, func() bool { return l.sendEcho(ctx) })
		err := l.explain(arrivals.Verdict())
		l.change(func() { l.silent, l.doubt = err, arrivals.Doubted() })
		l.down()
		switch {
		case err == nil:
			l.Observers.End(notifiedNot)
		case reported == nil || reported.Error() != err.Error():
			l.report(notifiedNot, err)
		}
		if reported = err; err != nil {
			checks-- // the count starts again once an echo arrives
		}
	}
}

// signals returns what was heard before a check. Each EchoAgain checks it makes the connection
// count as new, so that another echo must prove it. The pool may lead to another server by then.
func (l *Listener) signals(checks int) (heard listen.Signals) {
	l.change(func() { heard = l.heard })
	if l.EchoAgain > 0 {
		heard.Session += checks / l.EchoAgain
	}
	return heard
}

// explain returns the error of a verdict, with the remedy.
func (l *Listener) explain(v listen.Verdict) error {
	switch v {
	case listen.WrongServer:
		return errors.New(l.Package + ": notifications do not arrive: WithNotifyConnectionString leads to another server or database than the worker's pool, or through a proxy that pools transactions: give it a direct connection to the database of the " + l.Of)
	case listen.NoSender:
		return l.NoSender
	}
	return nil
}

// sendEcho reports whether an echo was sent. If it was not, the database does not answer, which is
// another condition.
func (l *Listener) sendEcho(ctx context.Context) bool {
	return l.Exec(ctx, `SELECT pg_notify($1::text, '')`, l.Echo) == nil
}

func (l *Listener) down() {
	if l.Down != nil && l.IsDown() {
		l.Down()
	}
}

func (l *Listener) report(s Subject, err error) {
	l.Observers.Begin(s, err)
	l.Observers.Notify(observe.NotifyFailed{Worker: l.Observers.worker, Err: err})
}
