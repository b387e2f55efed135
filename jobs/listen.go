package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/observe"
)

// errNotifyElsewhere reports that what is sent on a connection of the pool does not arrive
// on the listening one.
var errNotifyElsewhere = errors.New("jobs: notifications do not arrive: WithNotifyConnectionString leads to another server or database than the worker's pool, or through a proxy that pools transactions: give it a direct connection to the database of the jobs")

const (
	// echoEvery is how often the worker looks whether its echo has come back.
	echoEvery = 5 * time.Second
	// echoAgain is after how many looks it sends another one on a connection that has
	// proven itself: the pool may have moved to another server.
	echoAgain = 12
)

// listener is the state of the listening connection.
type listener struct {
	mu    sync.Mutex
	heard listen.Signals
	echo  bool  // one has arrived on this connection
	lost  error // since it was lost
	found error // that nothing arrives on it
	doubt bool  // an echo is missed
}

func (l *listener) change(f func(*listener)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

func (w *Worker) notifyError() (err error) {
	w.listens.change(func(l *listener) {
		if err = l.lost; err == nil {
			err = l.found
		}
	})
	return err
}

// deaf reports whether notifications, which this worker is to hear, are not known to arrive.
func (w *Worker) deaf() (deaf bool) {
	if w.cfg.notify == "" {
		return false
	}
	w.listens.change(func(l *listener) { deaf = !l.echo || l.doubt || l.found != nil })
	return deaf
}

// echo is the channel on which this worker sends to itself.
func (w *Worker) echo() string { return "jobs_echo_" + w.id.String() }

// listen passes on what is told of new jobs, and of what operators do.
func (w *Worker) listen(ctx context.Context) error {
	err := listen.Run(ctx, w.cfg.notify, map[string]func(string){
		w.news: func(queue string) {
			for _, l := range w.loops {
				if queue == "" {
					l.unwanted.Store(true)
				}
				if queue == "" || queue == l.name {
					l.news.Store(true)
					l.nudge()
				}
			}
		},
		w.changes: func(string) {
			for _, l := range w.loops {
				l.look.Store(true)
				l.news.Store(true)
				l.nudge()
			}
		},
		w.echo(): func(string) { w.listens.change(func(l *listener) { l.heard.Echoes++; l.echo = true }) },
	}, listen.Health{
		Connected: func() {
			w.listens.change(func(l *listener) { l.lost, l.heard.Connected, l.echo = nil, true, false; l.heard.Session++ })
			w.notifyWorks()
		},
		Lost: func(err error) {
			err = errtext.Of(err)
			w.listens.change(func(l *listener) { l.lost, l.heard.Connected, l.echo = err, false, false })
			w.wakeAll() // they poll more often
			w.notifyFails(err)
		},
		Doubted: func() (doubt bool) {
			w.listens.change(func(l *listener) { doubt = l.doubt })
			return doubt
		},
		Answered: func() { w.listens.change(func(l *listener) { l.heard.Answers++ }) },
	})
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	return nil
}

// watchNotify tells if notifications do not arrive though the connection that listens
// lives, and when they do again.
func (w *Worker) watchNotify(ctx context.Context) {
	var arrivals listen.Arrivals
	told := false
	for looks := 0; backoff.Sleep(ctx, w.echoes); looks++ {
		var heard listen.Signals
		w.listens.change(func(l *listener) { heard = l.heard })
		heard.Session += looks / echoAgain // as if the connection were new
		arrivals.Check(heard, 0, func() bool { return w.sendEcho(ctx) })
		var err error
		if arrivals.Verdict() == listen.WrongServer {
			err = errNotifyElsewhere
		}
		w.listens.change(func(l *listener) { l.found, l.doubt = err, arrivals.Doubted() })
		if w.deaf() {
			w.wakeAll() // they poll more often
		}
		switch {
		case err == nil:
			w.notifyWorks()
		case !told:
			w.notifyFails(err)
		}
		if told = err != nil; told {
			looks-- // this connection has not proven itself until an echo comes back on it
		}
	}
}

// sendEcho reports whether it could send this worker a notification. If not, the
// database does not answer, which is another trouble.
func (w *Worker) sendEcho(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	return w.on(ctx, func(conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, `SELECT pg_notify($1::text, '')`, w.echo())
		return err
	}) == nil
}

func (w *Worker) notifyFails(err error) {
	w.observers.Begin(about(observe.ConditionNotify, ""), err)
	w.observers.Notify(observe.NotifyFailed{Worker: w.source(), Err: err})
}

// notifyWorks tells that notifications arrive again, if nothing else is wrong.
func (w *Worker) notifyWorks() {
	if w.notifyError() == nil {
		w.observers.End(about(observe.ConditionNotify, ""))
	}
}
