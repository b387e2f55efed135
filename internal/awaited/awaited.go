// Package awaited lets goroutines wait for notifications of the end of jobs and runs on a
// channel of PostgreSQL. One connection listens for all waiting goroutines.
package awaited

import (
	"context"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Ends are the goroutines that wait for an end. The zero value polls without notifications.
type Ends struct {
	Notify  string                                             // the connection to listen on; empty: no notifications
	Channel func(ctx context.Context) (name string, err error) // on which the names of ended jobs and runs are notified

	mu   sync.Mutex
	of   map[string]map[chan struct{}]bool // waiting goroutines by name
	stop context.CancelFunc                // of the listener
	over chan struct{}                     // closed when the listener has ended
}

// Pauses between two polls of a goroutine.
const (
	firstPoll = 10 * time.Millisecond
	lastPoll  = time.Second
)

// Until calls poll until poll returns over, beginning at once. It calls poll after a
// notification of name, and each second. Without a connection to listen on, it polls more
// often at first. Until returns the error of a poll, or the cause of the end of ctx.
func (e *Ends) Until(ctx context.Context, name string, poll func() (over bool, err error)) error {
	ended, leave := e.join(ctx, name)
	defer leave()
	pause := firstPoll
	if e.Notify != "" {
		pause = lastPoll
	}
	for {
		over := false
		err := pgdriver.Repeated(func() (err error) {
			over, err = poll()
			return err
		})
		if over || err != nil {
			return pgdriver.CutOff(ctx, err)
		}
		select {
		case <-ended:
		case <-time.After(pause):
			pause = min(2*pause, lastPoll)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// join returns a channel that receives after a notification of name, until leave is called. The
// channel is nil if Notify is empty.
func (e *Ends) join(ctx context.Context, name string) (ended <-chan struct{}, leave func()) {
	if e.Notify == "" {
		return nil, func() {}
	}
	waiting := make(chan struct{}, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil {
		e.of = map[string]map[chan struct{}]bool{}
	}
	if e.of[name] == nil {
		e.of[name] = map[chan struct{}]bool{}
	}
	e.of[name][waiting] = true
	if e.stop == nil {
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		over := make(chan struct{})
		e.stop, e.over = stop, over
		go func() {
			defer close(over)
			e.listen(ctx)
		}()
	}
	return waiting, func() { e.leave(name, waiting) }
}

// leave removes a goroutine. If no other goroutine waits, it stops the listener and waits for
// its end.
func (e *Ends) leave(name string, waiting chan struct{}) {
	e.mu.Lock()
	delete(e.of[name], waiting)
	if len(e.of[name]) == 0 {
		delete(e.of, name)
	}
	var over chan struct{}
	if len(e.of) == 0 && e.stop != nil {
		e.stop()
		over, e.stop, e.over = e.over, nil, nil
	}
	e.mu.Unlock()
	if over != nil {
		<-over
	}
}

// listen forwards notifications. If it fails, the goroutines still poll.
func (e *Ends) listen(ctx context.Context) {
	channel, err := e.Channel(ctx)
	if err != nil {
		return
	}
	_ = listen.Run(ctx, e.Notify, map[string]func(string){channel: e.wake}, listen.Health{})
}

// wake wakes the goroutines that wait for the notified name. After the listener has connected,
// notified is empty and all goroutines wake.
func (e *Ends) wake(notified string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, all := range e.of {
		if notified == "" || notified == name {
			for c := range all {
				select {
				case c <- struct{}{}:
				default:
				}
			}
		}
	}
}
