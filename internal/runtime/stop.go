package runtime

import (
	"context"
	"sync"
)

// Stop is a request to stop. The request may come before the start. The zero Stop is ready.
type Stop struct {
	mu      sync.Mutex
	asked   bool
	drained bool
	end     context.CancelFunc
}

// Ask asks to stop. It calls the function of [Stop.Bind] before it returns, so that no new work
// starts afterwards.
func (s *Stop) Ask() { s.ask(&s.asked) }

// Drain asks to stop on behalf of an operator, see [Stop.Hold].
func (s *Stop) Drain() { s.ask(&s.drained) }

func (s *Stop) ask(of *bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *of = true; s.end != nil {
		s.end()
	}
}

// Bind sets the function that Ask and Drain call. If Ask or Drain was called before, Bind calls
// end at once.
func (s *Stop) Bind(end context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end = end; s.asked || s.drained {
		end()
	}
}

// Drained reports whether Drain was called.
func (s *Stop) Drained() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drained
}

// Hold waits until ctx ends or Ask is called. It returns at once if Ask was called before.
func (s *Stop) Hold(ctx context.Context) {
	held, release := context.WithCancel(ctx)
	defer release()
	s.mu.Lock()
	if s.end = release; s.asked {
		release()
	}
	s.mu.Unlock()
	<-held.Done()
}
