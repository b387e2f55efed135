package runtime_test

import (
	"context"
	"testing"

	"github.com/pgfrontier/worker/internal/runtime"
)

// Ask ends the bound function's context, whether it comes before or after Bind.
func TestStop(t *testing.T) {
	for _, before := range []bool{false, true} {
		var s runtime.Stop
		ctx, drain := context.WithCancel(t.Context())
		below, cancel := context.WithCancel(ctx)
		defer cancel()
		if before {
			s.Ask()
		}
		s.Bind(drain)
		if !before && below.Err() != nil {
			t.Error("it has ended before somebody asked")
		}
		s.Ask()
		s.Ask()
		if below.Err() == nil {
			t.Errorf("asked before: %t: it goes on", before)
		}
	}
}

// Drain ends the bound context, too. Hold then waits for Ask or the end of a context.
func TestHoldAfterDrain(t *testing.T) {
	for name, release := range map[string]func(*runtime.Stop, context.CancelFunc){
		"asked":   func(s *runtime.Stop, _ context.CancelFunc) { s.Ask() },
		"context": func(_ *runtime.Stop, cancel context.CancelFunc) { cancel() },
	} {
		var s runtime.Stop
		below, end := context.WithCancel(t.Context())
		s.Bind(end)
		if s.Drained() {
			t.Error("it is drained before somebody drains it")
		}
		s.Drain()
		if below.Err() == nil || !s.Drained() {
			t.Error("it goes on")
		}
		ctx, cancel := context.WithCancel(t.Context())
		held, over := make(chan struct{}), make(chan struct{})
		go func() {
			close(held)
			s.Hold(ctx)
			close(over)
		}()
		<-held
		select {
		case <-over:
			t.Errorf("%s: it holds nothing", name)
		default:
		}
		release(&s, cancel)
		<-over
		cancel()
	}
	var s runtime.Stop
	s.Ask()
	s.Hold(context.Background())
}
