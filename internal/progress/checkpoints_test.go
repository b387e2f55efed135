package progress_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/store"
)

// TestLoadWhileTheSequenceIsAltered gives the sequence new files in a loop. A load that meets
// the end of a file may fail. It never reports a sequence that began again.
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
					t.Errorf("the load returned a last position of %d, want 30", p.Last)
					return
				default:
					loads.Add(1)
				}
			}
		})
	}
	for range 250 {
		g.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 1`)
	}
	if loads.Load() == 0 {
		t.Error("every load failed")
	}
}

// A time that no time.Time can hold does not keep a consumer from loading its progress.
func TestLoadWithFarTimes(t *testing.T) {
	t.Parallel()
	g := rescalable(t, 2)
	conn, err := g.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, zone := range []string{"UTC", "Europe/Berlin"} { // offsets of old times have seconds there
		if _, err := conn.ExecContext(t.Context(), `SET timezone = '`+zone+`'`); err != nil {
			t.Fatal(err)
		}
		for at, want := range map[string]time.Time{"-infinity": store.EarliestTime, "4000-01-01 BC": store.EarliestTime, "20000-01-01": store.LatestTime, "infinity": store.LatestTime} {
			g.Exec(t, `UPDATE consumer_checkpoints SET updated_at = $1, paused_at = $1`, at)
			g.Exec(t, `UPDATE consumer_gap_skips SET first_seen_at = $1, created_at = '2020-02-02'`, at)
			p, err := g.Load(t.Context(), conn, "c")
			if err != nil || len(p.Open) != 2 || !p.Open[0].Seen.Equal(want) || p.Paused == nil || !p.Paused.Since.Equal(want) || p.Written != fmt.Sprint(want.UnixMicro()) {
				t.Errorf("%s, %s: %+v, %v", zone, at, p, err)
			}
			if _, _, err := g.Compact(t.Context(), conn, "c", 0, 0, 100); err != nil {
				t.Errorf("%s, %s: compaction: %v", zone, at, err)
			}
			rescale(t, g, func(r *progress.Rescale) bool {
				if _, _, err := r.Open(t.Context(), []string{"c"}); err != nil {
					t.Errorf("%s, %s: the open ranges: %v", zone, at, err)
				}
				return false
			})
		}
	}
}
