package group

import (
	"context"
	"sync"
)

// Stop is a request to stop. It may come before there is anything to stop. The zero Stop is
// ready.
type Stop struct {
	mu    sync.Mutex
	asked bool
	drain context.CancelFunc
}

// Ask asks to stop. It calls what [Stop.Bind] has bound before it returns, so that nothing new
// begins after that.
func (s *Stop) Ask() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked = true; s.drain != nil {
		s.drain()
	}
}

// Bind sets what Ask calls. If Ask was called before, Bind calls drain at once.
func (s *Stop) Bind(drain context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drain = drain; s.asked {
		drain()
	}
}
