package table

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/lab/tier"
)

// The pause between two polls doubles while nothing is found, from the first to the longest, less a
// random part of up to a quarter. A row that is found, or a job that ends, resets the pause to the
// first.
func TestPauseDoublesWhileNothingIsFound(t *testing.T) {
	tier.Checks(t, 5_000, 200_000)
	rapid.Check(t, func(t *rapid.T) {
		first := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Hour)).Draw(t, "first"))
		longest := time.Duration(rapid.Int64Range(int64(first), int64(day)).Draw(t, "longest"))
		now, p, want := time.Now(), pace{claimable: true, polls: jobrun.Polls{First: first, Longest: longest}}, first
		for range rapid.IntRange(1, 40).Draw(t, "looks") {
			found := rapid.IntRange(0, 2).Draw(t, "found")
			if found > 0 {
				want = first
			}
			p = p.rested(now, found, rapid.Float64Range(0, 0.999).Draw(t, "random"))
			if pause := p.pollAt.Sub(now); p.claimable || pause > want || pause < want-want/4-1 {
				t.Fatalf("with %d found the next look is in %v, want %v", found, pause, want)
			}
			if found == 0 {
				want = min(2*want, longest)
			}
			if rapid.Bool().Draw(t, "a job ends") {
				late := p.pollAt
				p, want = p.ended(now), first
				if at := now.Add(first); p.pollAt.After(at) || p.pollAt.Before(at) && !p.pollAt.Equal(late) {
					t.Fatalf("after the end of a job the next look is in %v, want %v at most", p.pollAt.Sub(now), first)
				}
			}
		}
	})
}

// away is a database that refuses each connection, and counts them.
type away struct{ tries int }

func (a *away) Connect(context.Context) (driver.Conn, error) {
	a.tries++
	return nil, io.ErrUnexpectedEOF
}

func (*away) Driver() driver.Driver { return nil }

// A heartbeat that fails is tried again long before the next is due, or the jobs would seem lost.
func TestFailedHeartbeatIsRetriedSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var server away
		db := sql.OpenDB(&server)
		defer db.Close()
		const interval = time.Hour
		w := NewWorker(NewStore(db, Options[int]{}), Handler[int]{}, WorkerOptions{HeartbeatInterval: interval, Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithTimeout(t.Context(), interval+time.Minute)
		defer cancel()
		if w.heart.run(ctx); server.tries < 5 {
			t.Errorf("in the minute after a heartbeat has failed it was tried %d times", server.tries)
		}
	})
}

// By default the pause does not grow.
func TestMaxIntervalIsIntervalByDefault(t *testing.T) {
	t.Parallel()
	o := WorkerOptions{Interval: 3 * time.Second}.withDefaults(defaultStalledMaxAge)
	if o.MaxInterval != o.Interval {
		t.Errorf("MaxInterval is %v, want %v", o.MaxInterval, o.Interval)
	}
	o.MaxInterval = time.Second
	if o.check(defaultStalledMaxAge) == nil {
		t.Error("a MaxInterval below Interval is allowed")
	}
}
