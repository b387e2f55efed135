package frontier

import (
	"context"
	"sync"
	"time"
)

// pulse shows since when a session has worked, and until when.
type pulse struct {
	mu     sync.Mutex
	since  time.Time // zero: no session works
	until  time.Time // when the latest statement began that saw the token
	token  string
	change chan struct{} // closed at the next change; nil: nobody waits
}

// beat takes note that a statement which began at a time saw a token. Another
// token is another incarnation of the server: the session outlasted a restart
// behind a proxy, and its connection proves nothing of the time before.
func (p *pulse) beat(began time.Time, token string) {
	p.set(func() {
		if p.since.IsZero() || token != p.token {
			p.since = began
		}
		p.until, p.token = began, token
	})
}

// stop takes note that the session has ended.
func (p *pulse) stop() { p.set(func() { p.since = time.Time{} }) }

func (p *pulse) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	if p.change != nil {
		close(p.change)
		p.change = nil
	}
}

// read returns the stretch in which the session has worked, and what is closed
// when that changes.
func (p *pulse) read() (since, until time.Time, change <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.change == nil {
		p.change = make(chan struct{})
	}
	return p.since, p.until, p.change
}

// Outlived reports whether the frontier's session has worked from a time until
// now: on one connection, with one incarnation of the server. It makes the
// frontier read once more, and waits for that until ctx ends. So a caller who
// has lost a connection learns whether others were lost as well.
func (f *Frontier) Outlived(ctx context.Context, from time.Time) bool {
	for now := time.Now(); ; {
		since, until, change := f.pulse.read()
		switch {
		case since.IsZero() || since.After(from):
			return false
		case until.After(now):
			return true
		}
		f.Wake()
		select {
		case <-change:
		case <-ctx.Done():
			return false
		}
	}
}
