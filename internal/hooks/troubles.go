package hooks

import (
	"sync"
	"time"
)

// Troubles are those that were told and are not over.
type Troubles[K comparable] struct {
	mu    sync.Mutex
	since map[K]time.Time
}

// Begin takes note of a trouble, which may have begun before.
func (t *Troubles[K]) Begin(what K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since == nil {
		t.since = map[K]time.Time{}
	}
	if _, is := t.since[what]; !is {
		t.since[what] = time.Now()
	}
}

// End takes note that a trouble is over. It reports whether there was one, and how
// long it has lasted.
func (t *Troubles[K]) End(what K) (lasted time.Duration, was bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, was := t.since[what]
	delete(t.since, what)
	if !was {
		return 0, false
	}
	return time.Since(since), true
}
