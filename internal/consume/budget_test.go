package consume

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/wakeup"
)

// The loops get all connections of a limited pool except the reserve, and at least one.
func TestBudget(t *testing.T) {
	for maxOpenConns, want := range map[int]int{-1: 100, 0: 100, 1: 1, minPool: 1, 10: 7} {
		synctest.Test(t, func(t *testing.T) {
			b, taken := newBudget(maxOpenConns), 0
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for taken < 100 && b.take(ctx) == nil {
				taken++
			}
			if taken != want {
				t.Errorf("of a pool of %d the loops got %d, want %d", maxOpenConns, taken, want)
			}
			b.release()
			if err := b.take(t.Context()); err != nil {
				t.Errorf("what was released cannot be taken: %v", err)
			}
		})
	}
}

// Many loops take turns, with and without failures, and leave the reserve free.
func TestLoopsLeaveTheReserve(t *testing.T) {
	db := pgtest.Empty(t).DB
	const loops, limit = 20, 6
	db.SetMaxOpenConns(limit)
	w := &connections{db: pgdriver.Pool{DB: db}, loopConns: newBudget(limit), limits: usualLimits, sweepNow: wakeup.New()}
	var mu sync.Mutex
	inUse, most := 0, 0
	all := make(chan struct{}) // closed when the loops have as many as they may have
	use := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		inUse += n
		if most = max(most, inUse); inUse == limit-reserve {
			select {
			case <-all:
			default:
				close(all)
			}
		}
	}
	var wg sync.WaitGroup
	for loop := range loops {
		wg.Go(func() {
			for round := range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				if (loop+round)%5 == 0 {
					cancel()
				}
				conn, release, err := w.loopConn(ctx, w.limits.quick)
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					cancel()
					continue
				}
				use(1)
				select {
				case <-all:
				case <-time.After(pgtest.Patience):
				}
				if _, err := conn.ExecContext(ctx, `SELECT pg_sleep(0.001)`); err != nil {
					t.Error(err)
				}
				if (loop+round)%3 == 0 {
					pgdriver.Discard(conn)
				}
				use(-1)
				_ = release(false, false)
				cancel()
			}
		})
	}
	wg.Wait()
	if most != limit-reserve {
		t.Errorf("the loops had up to %d connections at a time, want %d", most, limit-reserve)
	}
	if n := len(w.loopConns) + db.Stats().InUse; n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
}
