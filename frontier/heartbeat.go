package frontier

import (
	"context"
	"sync"
	"time"
)

// heartbeat is the period in which the current session has worked.
type heartbeat struct {
	mu     sync.Mutex
	since  time.Time // zero: no session works
	until  time.Time // start of the latest statement that read the token
	token  string
	change chan struct{} // closed at the next change; nil: nothing waits
}

// beat records that a statement that began at the given time read the token. Another token is
// another incarnation of the server. The session then outlasted a restart behind a proxy, and
// its connection proves nothing about the time before.
func (p *heartbeat) beat(began time.Time, token string) {
	p.set(func() {
		if p.since.IsZero() || token != p.token {
			p.since = began
		}
		p.until, p.token = began, token
	})
}

// stop records the end of the session.
func (p *heartbeat) stop() { p.set(func() { p.since = time.Time{} }) }

func (p *heartbeat) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	if p.change != nil {
		close(p.change)
		p.change = nil
	}
}

// read returns the period in which the session has worked, and a channel that is closed when
// the period changes.
func (p *heartbeat) read() (since, until time.Time, change <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.change == nil {
		p.change = make(chan struct{})
	}
	return p.since, p.until, p.change
}

// Outlived reports whether the frontier's session, of one connection and one incarnation, has
// worked since the given time. Outlived makes the frontier read once more, and waits for the read
// until ctx ends. A caller that has lost a connection learns whether other connections were lost as
// well.
func (f *Frontier) Outlived(ctx context.Context, from time.Time) bool {
	for now := time.Now(); ; {
		since, until, change := f.heartbeat.read()
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
