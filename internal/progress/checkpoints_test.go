package progress_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker/internal/progress/progresstest"
)

// TestLoadWhileTheSequenceIsAltered gives the sequence one file after the other. A load that
// meets the end of a file may fail, but never takes the sequence for one that began again.
func TestLoadWhileTheSequenceIsAltered(t *testing.T) {
	g := progresstest.New(t)
	g.DB.SetMaxIdleConns(8)
	ctx, cancel := context.WithCancel(t.Context())
	var loads atomic.Int64
	var loading sync.WaitGroup
	defer loading.Wait()
	defer cancel()
	for range 4 {
		loading.Go(func() {
			for ctx.Err() == nil {
				switch p, err := g.Load(ctx, g.DB, "c"); {
				case err != nil:
				case p.Last != 30:
					t.Errorf("the load says that %d positions were issued, want 30", p.Last)
					return
				default:
					loads.Add(1)
				}
			}
		})
	}
	for range 1000 {
		g.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 1`)
	}
	if loads.Load() == 0 {
		t.Error("each load has failed")
	}
}
