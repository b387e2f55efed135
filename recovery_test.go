package worker

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/wakeup"
)

// However often a trouble is told, its end is told once, with when it began and
// what it was in the end.
func TestTheEndOfATroubleIsToldOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type known struct {
			since time.Time
			err   error
		}
		var ledger troubles
		open := map[subject]known{}
		now := time.Unix(0, 0)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now = now.Add(time.Second)
			s := subject{
				trouble:  rapid.SampledFrom([]Trouble{TroubleDatabase, TroubleBatch, TroubleUnowned}).Draw(t, "trouble"),
				consumer: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "consumer"),
				detail:   rapid.SampledFrom([]string{"", "x"}).Draw(t, "detail"),
			}
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1, 2:
				k, was := open[s]
				if !was {
					k.since = now
				}
				k.err = errors.New(now.String())
				open[s] = k
				ledger.begin(s, k.err, now)
			case 3, 4:
				k, was := open[s]
				delete(open, s)
				r, told := ledger.end(s, now)
				if told != was {
					t.Fatalf("the end of %+v was told: %v, want %v", s, told, was)
				}
				if want := (Recovery{s.trouble, s.consumer, s.detail, now.Sub(k.since), k.err}); was && r != want {
					t.Fatalf("told was %+v, want %+v", r, want)
				}
			case 5:
				ledger.leave("a")
				for s := range open {
					if s.consumer == "a" && s.trouble != TroubleUnowned {
						delete(open, s)
					}
				}
			}
			if n := ledger.n.Load(); n != int64(len(open)) {
				t.Fatalf("%d are said to be open, %d are", n, len(open))
			}
		}
	})
}

// A consumer that another worker has moved has no lag until it was loaded again.
func TestLagWaitsForTheLoad(t *testing.T) {
	var u unitStatus
	safe := int64(7)
	lag := func() *int64 { return u.snapshot(&safe, nil).Lag }
	u.assigned(true)
	if l := lag(); l != nil {
		t.Errorf("before the first load the lag is %d", *l)
	}
	u.loaded(&progress.State{Position: 5})
	if l := lag(); l == nil || *l != 2 {
		t.Errorf("after the load the lag is %v, want 2", l)
	}
	u.assigned(false)
	if l := lag(); l != nil {
		t.Errorf("while another worker runs it, the lag is %d", *l)
	}
	u.begin()
	u.assigned(true)
	if l := lag(); l != nil {
		t.Errorf("before it was loaded again the lag is %d", *l)
	}
}

// What pgx says of a server that is away has three lines.
func TestTroublesAreToldOnOneLine(t *testing.T) {
	var told error
	w := &Worker{sweepNow: wakeup.New(), observer: Observer{FrontierFailed: func(err error) { told = err }}}
	var f frontier.Config
	w.observeFrontier(&f)
	f.OnFailure(fmt.Errorf("failed to connect:\n\t%w", io.EOF))
	if !errors.Is(told, io.EOF) || told.Error() != "failed to connect: EOF" {
		t.Errorf("told %q", told)
	}
}
