package jobrun

import (
	"context"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/watchdog"
)

type ending struct {
	Ending
	id int
}

// A statement stores a bounded number of bytes, and each outcome once. While too many outcomes
// wait, the settler is full.
func TestSettlerTakesBoundedBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := NewSettler[*ending]()
		sizes := rapid.SliceOfN(rapid.IntRange(0, 2*mostBytes), 0, 30).Draw(t, "sizes")
		now, total := time.Now(), 0
		for i, n := range sizes {
			total += n
			e := &ending{id: i}
			s.Expect()
			s.Add(e, n)
			if rapid.Bool().Draw(t, "set aside") { // and due
				s.waiting, s.aside = s.waiting[:len(s.waiting)-1], append(s.aside, e)
			}
		}
		if is := s.Full(); is != (s.bytes >= mostUnsettledBytes) || s.bytes < total {
			t.Fatalf("full: %t with %d bytes of %d", is, s.bytes, total)
		}
		seen := map[int]bool{}
		for {
			all, _ := s.take(now)
			if len(all) == 0 {
				break
			}
			sum := 0
			for _, e := range all {
				if sum += e.bytes; seen[e.id] {
					t.Fatalf("%d is taken again", e.id)
				}
				seen[e.id], e.Concluded = true, true
			}
			if sum > mostBytes && len(all) > 1 {
				t.Fatalf("%d bytes of %d", sum, len(all))
			}
			s.finishBatch(all, nil)
		}
		if len(seen) != len(sizes) || s.bytes != 0 || s.Unsettled() != 0 {
			t.Fatalf("%d of %d are taken, %d bytes are left", len(seen), len(sizes), s.bytes)
		}
	})
}

var errLocked, errRefused, errServer = errors.New("locked"), errors.New("refused"), errors.New("server")

// After a statement, stored outcomes are done, refused ones and those of locked rows are set aside,
// and the others wait if the statement has failed.
func TestSettlerSortsABatch(t *testing.T) {
	t.Parallel()
	s := NewSettler[*ending]()
	s.LockedRow = errLocked
	add := func() *ending {
		e := &ending{}
		s.Expect()
		s.Add(e, 1)
		return e
	}
	stored, refused, locked := add(), add(), add()
	now := time.Now()
	first, _ := s.take(now)
	stored.Concluded, refused.Why = true, errRefused
	s.finishBatch(first, nil)
	if locked.Why != errLocked || locked.Locked != 1 || refused.Why != errRefused || refused.Refused != 1 || s.Unsettled() != 2 {
		t.Fatalf("locked %+v, refused %+v, %d unsettled", locked, refused, s.Unsettled())
	}
	if one, n := s.Stuck(); n != 1 || one != refused {
		t.Errorf("%d are stuck", n)
	}
	if all, next := s.take(now); len(all) != 0 || next == nil {
		t.Errorf("%d are taken again at once", len(all))
	}
	later := add()
	second, _ := s.take(now.Add(time.Hour))
	if len(second) != 3 || second[0] != later || locked.Why != nil {
		t.Fatalf("%d are taken later", len(second))
	}
	later.Concluded = true
	s.finishBatch(second, errServer)
	if third, _ := s.take(now); len(third) != 2 || locked.Locked != 1 {
		t.Errorf("%d are taken after an error", len(third))
	}
}

// A stop waits for an outcome from the moment that it is expected. The settler retries after an
// error.
func TestSettlerFinishes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := NewSettler[*ending]()
	tries := 0
	s.Turn = &watchdog.Iteration{}
	s.Store = func(_ context.Context, all []*ending) error {
		if tries++; tries == 1 {
			return errServer
		}
		all[0].Concluded = true
		return nil
	}
	var reported []error
	s.Report = func(_ []*ending, err error) { reported = append(reported, err) }
	s.Expect()
	ended, end := context.WithCancel(t.Context())
	end()
	if left := s.Finish(ended); left != 1 {
		t.Fatalf("%d outcomes are expected", left)
	}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		s.Run(ctx, time.Minute)
	}()
	s.Add(&ending{}, 1)
	if left := s.Finish(ctx); left != 0 {
		t.Errorf("%d outcomes are left", left)
	}
	cancel()
	<-ran
	if len(reported) != 2 || reported[0] != errServer || reported[1] != nil {
		t.Errorf("reported are %v", reported)
	}
}
