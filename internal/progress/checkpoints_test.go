package progress_test

import (
	"context"
	"sync"
	"testing"

	"github.com/pgfrontier/worker/internal/progress/progresstest"
)

// TestLoadWhileTheSequenceIsAltered gives the sequence one file after the other. A load that
// meets the end of a file may fail, but never takes the sequence for one that began again.
func TestLoadWhileTheSequenceIsAltered(t *testing.T) {
	g := progresstest.New(t)
	g.DB.SetMaxIdleConns(8)
	ctx, cancel := context.WithCancel(t.Context())
	var loading sync.WaitGroup
	defer loading.Wait()
	defer cancel()
	for range 4 {
		loading.Go(func() {
			for ctx.Err() == nil {
				if p, err := g.Load(ctx, g.DB, "c"); err == nil && p.Last != 30 {
					t.Errorf("the load says that %d positions were issued, want 30", p.Last)
					return
				}
			}
		})
	}
	for range 1000 {
		g.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 1`)
	}
}
