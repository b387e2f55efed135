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

// Ask ends what is bound before it returns, so that nothing new begins from then on.
func (s *Stop) Ask() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked = true; s.drain != nil {
		s.drain()
	}
}

// Bind makes drain what Ask calls. If somebody has asked before, it is called at once.
func (s *Stop) Bind(drain context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drain = drain; s.asked {
		drain()
	}
}
