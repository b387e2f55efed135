package group_test

import (
	"context"
	"testing"

	"github.com/pgfrontier/worker/internal/group"
)

// Whoever asks comes back when what is bound has ended, whichever comes first.
func TestStop(t *testing.T) {
	for _, before := range []bool{false, true} {
		var s group.Stop
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
