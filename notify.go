package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
)

// errNotifyElsewhere reports that what is sent on a connection of the pool does
// not arrive on the listening one.
var errNotifyElsewhere = errors.New("worker: notifications do not arrive: WithNotifyConnectionString leads to another database than the worker's pool, or through a proxy that pools transactions: give it a direct connection to the database of the events")

// errNotifyNobody reports that events come and no notification does.
func errNotifyNobody(channel string) error {
	return fmt.Errorf("worker: events are appended and nobody notifies channel %q: make the stores that append with storepostgres.WithNotifyChannel(%q), or name their channel by WithNotifyChannel", channel, channel)
}

const (
	// echoesMissed is how many echoes in a row must not have come back.
	echoesMissed = 2
	// silencesHeard is in how many looks events must have come, without any
	// notification since the first of them.
	silencesHeard = 3
)

// hearing is what a listening connection has heard.
type hearing struct {
	connected bool
	session   int // counts the connections
	events    int // notifications of events
	echoes    int // of what this worker has sent to itself
	answers   int // signs of life, of any kind
}

// notifyWatch decides whether notifications arrive. It takes looks some time
// apart, longer than a notification takes. The zero value has seen nothing.
//
// A quiet log, and a transaction that stays open, raise the head of the log not
// at all: only events that have become visible count. Their notifications come
// at the same COMMIT.
//
// Each verdict needs a proof that nothing else is wrong. Nobody notifies if an
// echo came back during the silence. The connection leads elsewhere if it
// answers while echoes are missed. An echo counts as missed at the next look.
type notifyWatch struct {
	hearing
	head     int64 // the highest seen
	awaited  bool  // an echo was sent since the latest look
	missed   int   // echoes in a row that have not come by the look after them
	answered bool  // the connection lives, since the first echo was missed
	silent   int   // looks that found new events, since the last notification
	proven   bool  // an echo came back, since the first of these looks
}

// take takes a look, and sends an echo if that is to prove that notifications
// arrive where somebody sends them. echo reports whether it could.
func (n *notifyWatch) take(h hearing, head int64, echo func() (sent bool)) {
	n.awaited = n.look(h, head) && echo()
}

// look takes a look, and returns whether to ask for an echo.
func (n *notifyWatch) look(h hearing, head int64) (ask bool) {
	fresh, grown := h.session != n.session, head > n.head && n.head > 0
	came := h.echoes != n.echoes
	switch {
	case fresh || came:
		n.missed, n.answered = 0, false
	case n.missed > 0 && h.answers != n.answers:
		n.answered = true
	}
	if n.awaited && !fresh && !came {
		n.missed++
	}
	switch {
	case fresh || h.events != n.events:
		n.silent, n.proven = 0, false
	case came && n.silent > 0:
		n.proven = true
	}
	if grown && h.connected && !fresh && h.events == n.events {
		n.silent++
	}
	n.hearing, n.head = h, max(n.head, head)
	return h.connected && (fresh || n.missed > 0 || n.silent > 0 && (grown || !n.proven))
}

// doubts reports whether the connection is to show that it lives.
func (n *notifyWatch) doubts() bool { return n.missed > 0 }

// verdict is what the looks have shown.
func (n *notifyWatch) verdict(channel string) error {
	switch {
	case !n.connected:
		return nil // the connection tells itself
	case n.missed >= echoesMissed && n.answered:
		return errNotifyElsewhere
	case n.silent >= silencesHeard && n.proven:
		return errNotifyNobody(channel)
	}
	return nil
}

// listener is the state of the listening connection.
type listener struct {
	mu    sync.Mutex
	heard hearing
	lost  error // since it was lost
	found error // the latest verdict
	doubt bool  // echoes are missed
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

func (l *listener) hearing() (h hearing) {
	l.change(func(l *listener) { h = l.heard })
	return h
}

// echo is the channel on which this worker sends to itself.
func (w *Worker) echo() string { return "worker_echo_" + w.id.String() }

// listen passes on the notifications of the store and of the other workers.
func (w *Worker) listen(ctx context.Context) error {
	channels := map[string]func(string){
		w.cfg.NotifyChannel: func(string) {
			w.listener.change(func(l *listener) { l.heard.events++ })
			w.noticeEvents()
		},
		w.channel:     func(string) { w.noticeNews() },
		w.waitChannel: w.noticeWord,
		w.echo():      func(string) { w.listener.change(func(l *listener) { l.heard.echoes++ }) },
	}
	lost := subject{trouble: TroubleNotify, detail: "connection"}
	return frontier.Listen(ctx, w.cfg.NotifyConnectionString, channels, frontier.ListenerHealth{
		Connected: func() {
			w.listener.change(func(l *listener) { l.lost, l.heard.connected = nil, true; l.heard.session++ })
			w.recovered(lost)
		},
		Lost: func(err error) {
			err = errtext.Of(explain(err))
			w.listener.change(func(l *listener) { l.lost, l.heard.connected = err, false })
			w.troubled(lost, err)
			tell(w.cfg.Observer.NotifyFailed, err)
		},
		Doubted: func() (doubt bool) {
			w.listener.change(func(l *listener) { doubt = l.doubt })
			return doubt
		},
		Answered: func() { w.listener.change(func(l *listener) { l.heard.answers++ }) },
	}, w.cfg.Logger)
}

// watchNotify tells if notifications do not arrive though the connection that
// listens lives, and when they do again.
func (w *Worker) watchNotify(ctx context.Context) {
	about := subject{trouble: TroubleNotify, detail: "notifications"}
	var n notifyWatch
	for told := error(nil); backoff.Sleep(ctx, w.limits.notify); {
		head, _ := w.frontier.Head()
		n.take(w.listener.hearing(), head, func() bool { return w.sendEcho(ctx) })
		err := n.verdict(w.cfg.NotifyChannel)
		w.listener.change(func(l *listener) { l.found, l.doubt = err, n.doubts() })
		switch {
		case err == nil:
			w.recovered(about)
		case told == nil || told.Error() != err.Error():
			w.cfg.Logger.Error(ctx, "notifications do not arrive", "error", err)
			w.troubled(about, err)
			tell(w.cfg.Observer.NotifyFailed, err)
		}
		told = err
	}
}

// sendEcho reports whether it could send this worker a notification. If not,
// the database does not answer, which is another trouble.
func (w *Worker) sendEcho(ctx context.Context) bool {
	err := w.bounded(ctx, w.limits.quick, func(ctx context.Context) error {
		_, err := w.db.ExecContext(ctx, `SELECT pg_notify($1::text, '')`, w.echo())
		return err
	})
	return err == nil
}
