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

// errNotifyElsewhere reports that notifications sent on the pool do not arrive on the listening
// connection.
var errNotifyElsewhere = errors.New("jobs: notifications do not arrive: WithNotifyConnectionString leads to another server or database than the worker's pool, or through a proxy that pools transactions: give it a direct connection to the database of the jobs")

const (
	// echoEvery is how often the worker checks whether its echo has arrived. An echo is a
	// notification that the worker sends to itself.
	echoEvery = 5 * time.Second
	// echoAgain is after how many checks the worker sends another echo on a connection that has
	// received one. The pool may have moved to another server.
	echoAgain = 12
)

// listener is the state of the listening connection.
type listener struct {
	mu     sync.Mutex
	heard  listen.Signals
	echo   bool  // an echo has arrived on this connection
	lost   error // why the connection is lost; nil: it is connected
	silent error // no echo arrives on the connection; nil: echoes arrive
	doubt  bool  // an echo is overdue
}

func (l *listener) change(f func(*listener)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

func (w *Worker) notifyError() (err error) {
	w.listens.change(func(l *listener) {
		if err = l.lost; err == nil {
			err = l.silent
		}
	})
	return err
}

// notifyDown reports whether notifications are expected but not known to arrive.
func (w *Worker) notifyDown() (notifyDown bool) {
	if w.cfg.notify == "" {
		return false
	}
	w.listens.change(func(l *listener) { notifyDown = !l.echo || l.doubt || l.silent != nil })
	return notifyDown
}

// echo returns the channel of this worker's echoes.
func (w *Worker) echo() string { return "jobs_echo_" + w.id.String() }

// listen wakes the loops for notifications of new jobs and of operations.
func (w *Worker) listen(ctx context.Context) error {
	err := listen.Run(ctx, w.cfg.notify, map[string]func(string){
		w.jobsChannel: func(queue string) {
			for _, l := range w.loops {
				if queue == "" {
					l.unwanted.Store(true)
				}
				if queue == "" || queue == l.name {
					l.newJobs.Store(true)
					l.wake()
				}
			}
		},
		w.changesChannel: func(string) {
			for _, l := range w.loops {
				l.reconcileAsked.Store(true)
				l.newJobs.Store(true)
				l.wake()
			}
		},
		w.echo(): func(string) { w.listens.change(func(l *listener) { l.heard.Echoes++; l.echo = true }) },
	}, listen.Health{
		Connected: func() {
			w.listens.change(func(l *listener) { l.lost, l.heard.Connected, l.echo = nil, true, false; l.heard.Session++ })
			w.reportNotifyWorks()
		},
		Lost: func(err error) {
			err = errtext.Of(err)
			w.listens.change(func(l *listener) { l.lost, l.heard.Connected, l.echo = err, false, false })
			w.wakeLoops() // the loops poll more often
			w.reportNotifyFailed(err)
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

// watchNotify reports when notifications stop arriving on a live connection, and when they arrive
// again.
func (w *Worker) watchNotify(ctx context.Context) {
	var arrivals listen.Arrivals
	reported := false
	for checks := 0; backoff.Sleep(ctx, w.echoes); checks++ {
		var heard listen.Signals
		w.listens.change(func(l *listener) { heard = l.heard })
		heard.Session += checks / echoAgain // as if the connection were new
		arrivals.Check(heard, 0, func() bool { return w.sendEcho(ctx) })
		var err error
		if arrivals.Verdict() == listen.WrongServer {
			err = errNotifyElsewhere
		}
		w.listens.change(func(l *listener) { l.silent, l.doubt = err, arrivals.Doubted() })
		if w.notifyDown() {
			w.wakeLoops() // the loops poll more often
		}
		switch {
		case err == nil:
			w.reportNotifyWorks()
		case !reported:
			w.reportNotifyFailed(err)
		}
		if reported = err != nil; reported {
			checks-- // the count starts again once an echo arrives on this connection
		}
	}
}

// sendEcho sends an echo and reports whether it was sent. If it was not sent, the database does not
// answer, which is another condition.
func (w *Worker) sendEcho(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	return w.on(ctx, func(conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, `SELECT pg_notify($1::text, '')`, w.echo())
		return err
	}) == nil
}

func (w *Worker) reportNotifyFailed(err error) {
	w.observers.Begin(about(observe.ConditionNotify, ""), err)
	w.observers.Notify(observe.NotifyFailed{Worker: w.source(), Err: err})
}

// reportNotifyWorks ends the condition, if notifications arrive.
func (w *Worker) reportNotifyWorks() {
	if w.notifyError() == nil {
		w.observers.End(about(observe.ConditionNotify, ""))
	}
}
