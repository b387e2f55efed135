// Package awaited lets goroutines wait for what a channel of PostgreSQL tells: the ends
// of jobs and of runs. While any wait, one connection listens for all.
package awaited

import (
	"context"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Ends are the goroutines that wait for ends. The zero value is none; none is told.
type Ends struct {
	Notify  string                                             // the connection to listen on; empty: nobody is told
	Channel func(ctx context.Context) (name string, err error) // that tells the names of what has ended

	mu   sync.Mutex
	of   map[string]map[chan struct{}]bool // by what they wait for
	stop context.CancelFunc                // of the listener
	over chan struct{}                     // closed when it has ended
}

// Pauses between two looks of a waiter.
const (
	firstLook = 10 * time.Millisecond
	lastLook  = time.Second
)

// Until looks until something is over, the first time at once: when its name is told,
// and each second, or without a connection to listen on more often at first. It returns
// the error of a look, or why ctx has ended.
func (e *Ends) Until(ctx context.Context, name string, look func() (over bool, err error)) error {
	ended, leave := e.join(ctx, name)
	defer leave()
	pause := firstLook
	if e.Notify != "" {
		pause = lastLook
	}
	for {
		over := false
		err := pgdriver.Repeated(func() (err error) {
			over, err = look()
			return err
		})
		if over || err != nil {
			return pgdriver.CutOff(ctx, err)
		}
		select {
		case <-ended:
		case <-time.After(pause):
			pause = min(2*pause, lastLook)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// join returns a channel that hears of the end of something, until leave. It is nil if
// nobody is told.
func (e *Ends) join(ctx context.Context, name string) (ended <-chan struct{}, leave func()) {
	if e.Notify == "" {
		return nil, func() {}
	}
	mine := make(chan struct{}, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil {
		e.of = map[string]map[chan struct{}]bool{}
	}
	if e.of[name] == nil {
		e.of[name] = map[chan struct{}]bool{}
	}
	e.of[name][mine] = true
	if e.stop == nil {
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		over := make(chan struct{})
		e.stop, e.over = stop, over
		go func() {
			defer close(over)
			e.listen(ctx)
		}()
	}
	return mine, func() { e.leave(name, mine) }
}

// leave ends the listener with the last who waits, and waits for it.
func (e *Ends) leave(name string, mine chan struct{}) {
	e.mu.Lock()
	delete(e.of[name], mine)
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

// listen passes on what has ended. Without it the waiters look.
func (e *Ends) listen(ctx context.Context) {
	channel, err := e.Channel(ctx)
	if err != nil {
		return
	}
	_ = listen.Run(ctx, e.Notify, map[string]func(string){channel: e.tell}, listen.Health{})
}

// tell wakes who waits for something; all of them after the listener has connected.
func (e *Ends) tell(said string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, all := range e.of {
		if said == "" || said == name {
			for c := range all {
				select {
				case c <- struct{}{}:
				default:
				}
			}
		}
	}
}
