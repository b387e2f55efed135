package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/tier"
)

// stateError is an error with an SQLSTATE.
type stateError string

func (s stateError) Error() string    { return "state " + string(s) }
func (s stateError) SQLState() string { return string(s) }

const (
	aboutRow    = stateError("23505")
	ofStatement = stateError("42501")
	toldOfRow   = stateError("42883") // which f returns by OfRow
	ofServer    = stateError("57P01")
)

// Each passes every good row once, and refuses every bad row. An error that may be about the
// whole statement counts as a row's error only if another row succeeds, or the caller says so.
func TestEachFindsRows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(rapid.SampledFrom([]error{nil, aboutRow, ofStatement, toldOfRow}), 1, 16).Draw(t, "rows")
		all := make([]int, len(rows))
		for i := range all {
			all[i] = i
		}
		var taken, refused []int
		works := slices.Contains(rows, nil) || slices.Contains(rows, error(toldOfRow))
		calls, passing := 0, rapid.IntRange(-1, len(rows)-1).Draw(t, "passes the second time")
		if passing >= 0 && (rows[passing] != ofStatement || !works) {
			passing = -1
		}
		tried := false
		err := Each(all, func(part []int) error {
			calls++
			for _, i := range part {
				if i == passing && len(part) == 1 {
					if tried {
						continue
					}
					tried = true
				}
				if rows[i] == toldOfRow && len(part) == 1 {
					return OfRow(toldOfRow)
				}
				if rows[i] != nil {
					return fmt.Errorf("wrapped: %w", rows[i])
				}
			}
			taken = append(taken, part...)
			return nil
		}, func(i int, err error) error {
			if !errors.Is(err, rows[i]) {
				t.Errorf("%d is refused with %v", i, err)
			}
			refused = append(refused, i)
			return nil
		})
		slices.Sort(refused)
		slices.Sort(taken)
		var good, bad []int
		for i, e := range rows {
			switch {
			case e == nil, i == passing:
				good = append(good, i)
			case e == aboutRow || works:
				bad = append(bad, i)
			}
		}
		if !slices.Equal(taken, good) || !slices.Equal(refused, bad) {
			t.Errorf("taken %v, want %v; refused %v, want %v", taken, good, refused, bad)
		}
		if failed := len(good)+len(bad) < len(rows); failed != errors.Is(err, ofStatement) || !failed && err != nil {
			t.Errorf("the error is %v", err)
		}
		if calls > 3*len(rows)-1 {
			t.Errorf("%d calls for %d rows", calls, len(rows))
		}
	})
}

// Each does not halve rows for errors that are not theirs. It soon stops halving for an error
// that all rows share.
func TestEachEnds(t *testing.T) {
	t.Parallel()
	all := make([]int, 2000)
	for _, test := range []struct {
		err  error
		most int
	}{{ofServer, 1}, {context.DeadlineExceeded, 1}, {errors.New("no state"), 1}, {ofStatement, mostBlind + 1}} {
		calls := 0
		err := Each(all, func([]int) error { calls++; return test.err }, func(int, error) error {
			t.Errorf("%v: a row is set aside", test.err)
			return nil
		})
		if !errors.Is(err, test.err) || calls > test.most {
			t.Errorf("%v: %v after %d calls", test.err, err, calls)
		}
	}
	// An error of refused, and an error of the server halfway, end Each.
	full, calls := errors.New("full"), 0
	if err := Each(all, func([]int) error { calls++; return aboutRow }, func(int, error) error { return full }); !errors.Is(err, full) || calls > 12 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if err := Each(all, func(part []int) error {
		if len(part) == 1 {
			return ofServer
		}
		return aboutRow
	}, func(int, error) error { return nil }); !errors.Is(err, ofServer) {
		t.Error(err)
	}
	if err := Each(nil, func([]int) error { return aboutRow }, func(int, error) error { return full }); !errors.Is(err, aboutRow) {
		t.Error(err)
	}
}

// Pace lowers the number of rows of slow statements down to one, and raises it again for fast
// ones.
func TestPace(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var p Pace
		limit := rapid.IntRange(1, 5000).Draw(t, "limit")
		fits := rapid.IntRange(1, 5000).Draw(t, "fits") // number of rows within the limit
		for range 40 {
			n := p.Most(limit)
			if n < 1 || n > limit {
				t.Fatalf("%d rows of %d", n, limit)
			}
			if n > fits {
				p.Took(n, 10*time.Second, 10*time.Second, context.DeadlineExceeded)
				if next := p.Most(limit); next > max(n/2, 1) {
					t.Fatalf("%d after %d", next, n)
				}
			} else {
				p.Took(n, time.Second, 10*time.Second, nil)
			}
		}
		for range 40 {
			p.Took(p.Most(limit), time.Second, 10*time.Second, nil)
		}
		if n := p.Most(limit); n != limit {
			t.Fatalf("%d rows of %d", n, limit)
		}
	})
	var p Pace
	p.Took(100, time.Second, 10*time.Second, fmt.Errorf("wrapped: %w", stateError("57014")))
	if n := p.Most(1000); n != 50 {
		t.Errorf("%d rows after statement_timeout", n)
	}
	p.Took(50, 6*time.Second, 10*time.Second, nil)
	p.Took(50, time.Second, 10*time.Second, ofServer)
	if n := p.Most(1000); n != 50 {
		t.Errorf("%d rows after one that was slow, and one that failed", n)
	}
}

// A refused row is left out of the next rounds, for longer each time. A round drops exactly the
// refusals of rows that it has tried and not refused. A refusal that no round tries is dropped
// long after its retry was due.
func TestRefused(t *testing.T) {
	tier.Checks(t, 2_000, 200_000)
	rapid.Check(t, func(t *rapid.T) {
		var r Refused[int64]
		type known struct {
			times int
			last  time.Time
		}
		all := map[int64]known{} // the model
		now := time.Now()
		for range rapid.IntRange(1, 30).Draw(t, "rounds") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90_000).Draw(t, "milliseconds")) * time.Millisecond)
			out := r.Begin(now)
			for _, id := range out {
				if k := all[id]; k.times == 0 || now.Sub(k.last) > time.Minute {
					t.Fatalf("%d is left out: %+v", id, k)
				}
			}
			tried := map[int64]bool{}
			for id, k := range all {
				if tried[id] = !slices.Contains(out, id); tried[id] && now.Sub(k.last) < min(time.Second<<(k.times-1), time.Minute)/2 {
					t.Fatalf("%d is tried after %v: %+v", id, now.Sub(k.last), k)
				}
			}
			for id := range int64(4) {
				if !slices.Contains(out, id) && rapid.Bool().Draw(t, "refused") {
					was, ok := r.Add(id, aboutRow, now)
					if _, is := all[id]; was != is || !ok {
						t.Fatalf("%d was known: %t, there was room: %t", id, was, ok)
					}
					all[id], tried[id] = known{min(all[id].times+1, 20), now}, false
				}
			}
			if rapid.Bool().Draw(t, "an error") {
				continue
			}
			r.partial = rapid.Bool().Draw(t, "partial")
			until := map[int64]time.Time{}
			for id, one := range r.of {
				until[id] = one.until
			}
			r.End()
			for id, is := range tried {
				if is && (!r.partial || now.Sub(until[id]) >= forgetAfter) {
					delete(all, id)
				}
			}
			if len(r.of) != len(all) || (r.Err() == nil) != (len(all) == 0) {
				t.Fatalf("%v are left, want %v", r.of, all)
			}
		}
	})
	var r Refused[int64]
	for id := range int64(MostRefused) {
		if _, ok := r.Add(id, aboutRow, time.Now()); !ok {
			t.Fatal("there is no room")
		}
	}
	if _, ok := r.Add(MostRefused, aboutRow, time.Now()); ok {
		t.Error("there is room for one more")
	}
}
