//go:build unix

package metricstest

import (
	"context"
	"database/sql"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// until handles events, and says when it has handled the last one.
type until struct {
	last int64
	done chan struct{}
}

func (u *until) Name() string { return "a" }

func (u *until) Handle(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	if e.GlobalPosition == u.last {
		close(u.done)
	}
	return nil
}

// CatchUp measures how many events a second a consumer handles that does nothing with them, in
// batches of 100, and what CPU time of this process that takes. The adapter may be nil.
func CatchUp(b *testing.B, a Adapter, metadata []byte) {
	d := pgtest.New(b)
	for left := b.N; left > 0; left -= 10_000 {
		events := make([]store.Event, min(left, 10_000))
		for i := range events {
			events[i].Metadata = metadata
		}
		Commit(b, Append(b, d.DB, "a", events...))
	}
	var options []worker.Option
	if a != nil {
		options = a.Options()
	}
	u := &until{int64(b.N), make(chan struct{})}
	w := worker.New(d.DB, Store(), []consumer.Consumer{u}, options...)
	if a != nil {
		a.Watch(w)
	}
	b.ResetTimer()
	began, spent := time.Now(), cpu(b)
	end := run(b, w.Start, w.Stop)
	select {
	case <-u.done:
	case <-time.After(10 * patience):
		b.Fatal("waited in vain for the last event")
	}
	b.StopTimer()
	b.ReportMetric(float64((cpu(b)-spent).Microseconds())/float64(b.N), "cpu-µs/event")
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "events/s")
	end()
}

// cpu is the time that this process has used. Others on the machine do not change it much.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
