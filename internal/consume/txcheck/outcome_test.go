package txcheck

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// An outcome lookup, and a lookup during the shutdown, last as long as the last statements of a
// worker may.
func TestLookupLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped, stop := context.WithCancel(t.Context())
		stop()
		c := Check{unit: Unit{Leave: 5 * time.Second, Stop: func() context.Context { return stopped }}}
		for name, bound := range map[string]func(context.Context) (context.Context, context.CancelFunc){"an outcome lookup": c.lookupContext, "the shutdown deadline": c.shutdownDeadline} {
			began := time.Now()
			ctx, cancel := bound(t.Context())
			if <-ctx.Done(); time.Since(began) != 5*time.Second {
				t.Errorf("%s lasts %v, want 5s", name, time.Since(began))
			}
			cancel()
		}
	})
}

// The transaction's status shows the outcome of a batch, even after others have moved the
// consumer.
func TestTransactionVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		commit, seen bool
		want         verdict
	}{
		"committed":                  {true, false, handlerOvertaken},
		"committed, and seen":        {true, true, handlerOvertaken},
		"rolled back":                {false, false, txIntact},
		"rolled back by its handler": {false, true, handlerRolledBack},
	} {
		t.Run(name, func(t *testing.T) {
			g := progresstest.New(t)
			from, tx := g.Loaded(t), g.Begin(t)
			a := progress.Advance{To: 20, Token: g.Token}
			moved, ok, err := g.Guard(t.Context(), tx, "c", from, a)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if c.commit {
				err = tx.Commit()
			} else {
				err = tx.Rollback()
			}
			if err != nil {
				t.Fatal(err)
			}
			g.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
			b := &Batch{Work: Work{Before: from.Version, To: a.To, Token: a.Token}, After: moved.Version, Transaction: moved.Transaction, Seen: c.seen}
			now := g.Loaded(t)
			if !b.movedOn(now) {
				t.Fatalf("the row is %+v", now.Version)
			}
			check := Check{unit: Unit{Name: "c", Checkpoints: &g.Checkpoints}, Last: b}
			if got, err := check.transactionVerdict(t.Context(), g.DB, b.judge(now)); err != nil || got != c.want {
				t.Errorf("verdict %d, %v; want %d", got, err, c.want)
			}
		})
	}
}
