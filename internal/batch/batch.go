// Package batch bounds what one of many rows can do to a statement about all of them. A
// statement that fails because of a row is halved until the row is found; the row is set
// aside for a while, and the others go on. A statement that takes too long is about fewer
// rows the next time.
package batch

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// mostBlind bounds how many statements fail that the server may refuse whatever the rows
// are, before one of them succeeds.
const mostBlind = 32

// Each calls f with all. If a row made the statement fail, Each calls f with each half, and
// so on, until it has found the row: it calls refused with that. Another error ends it.
//
// An error that may as well be about the whole statement is about a row only if f succeeds
// for others, and then fails again for this one: a privilege that goes refuses all rows, one
// that a trigger lacks may refuse one, and a lock that is not to be had may be a moment
// later. If f succeeds for none, Each returns the error, and refuses nothing.
func Each[T any](all []T, f func(all []T) error, refused func(one T, err error) error) error {
	s := search[T]{f: f, refused: refused}
	if err := s.each(all); err != nil {
		return err
	}
	if len(s.doubts) > 0 {
		return s.first
	}
	return nil
}

type search[T any] struct {
	f       func(all []T) error
	refused func(one T, err error) error
	passed  bool  // f has succeeded for some
	blind   int   // calls that failed before
	doubts  []T   // f has failed for each; that may be about the whole statement
	first   error // of these
}

func (s *search[T]) each(all []T) error {
	err := s.f(all)
	fault := pgdriver.FaultOf(err)
	switch {
	case err == nil && len(all) > 0:
		return s.pass()
	case err == nil, len(all) == 0, fault == pgdriver.FaultServer:
		return err
	case fault == pgdriver.FaultStatement && !s.passed:
		if s.blind++; s.blind > mostBlind {
			return err
		}
		if len(all) == 1 {
			s.doubts, s.first = append(s.doubts, all[0]), cmp.Or(s.first, err)
			return nil
		}
	case len(all) == 1 && fault == pgdriver.FaultStatement:
		return s.again(all[0])
	case len(all) == 1:
		return s.refused(all[0], err)
	}
	half := len(all) / 2
	if err := s.each(all[:half]); err != nil {
		return err
	}
	return s.each(all[half:])
}

// pass records that the statement succeeds for some rows: what it refuses still is about
// others.
func (s *search[T]) pass() error {
	s.passed = true
	doubts := s.doubts
	s.doubts = nil
	for _, one := range doubts {
		if err := s.again(one); err != nil {
			return err
		}
	}
	return nil
}

// again tries one row again.
func (s *search[T]) again(one T) error {
	err := s.f([]T{one})
	if err == nil || pgdriver.FaultOf(err) == pgdriver.FaultServer {
		return err
	}
	return s.refused(one, err)
}

// Pace bounds how many rows a kind of statement is about, by the time that they take. The
// zero value bounds nothing.
type Pace struct{ most int }

// Most returns how many rows the next statement is about: limit at most, 1 at least.
func (p *Pace) Most(limit int) int {
	if p.most == 0 {
		return limit
	}
	return min(p.most, limit)
}

// Took records that a statement about n rows has taken so long, of limit, or that the
// server gave it up. Half as many are next. After one that has not taken half of limit,
// twice as many are.
func (p *Pace) Took(n int, took, limit time.Duration, err error) {
	switch slow := took >= limit || pgdriver.SQLState(err) == pgdriver.QueryCanceled; {
	case slow:
		p.most = max(n/2, 1)
	case err == nil && p.most > 1<<20:
		p.most = 0
	case err == nil && took < limit/2:
		p.most *= 2
	}
}

// MostRefused bounds how many rows are set aside of a kind.
const MostRefused = 1000

// forgetAfter is for how long a refusal is remembered that may be tried again and that no
// round comes to: its row may have been deleted.
const forgetAfter = time.Minute

// Refused are the rows that are set aside of a kind of statement. The next rounds leave
// them out, for longer each time. It is not safe for concurrent use.
type Refused[K cmp.Ordered] struct {
	of      map[K]refusal
	began   time.Time // the last round
	partial bool      // it may not have come to all that it did not leave out
}

type refusal struct {
	err   error
	times int
	until time.Time // when it is tried again
}

// Pause returns the pause after a row was refused so many times in a row.
func Pause(times int) time.Duration {
	return backoff.Delay(times, time.Second, time.Minute, rand.Float64())
}

// Begin begins a round, and returns what it leaves out.
func (r *Refused[K]) Begin(now time.Time) (out []K) {
	r.began, r.partial = now, false
	for id, one := range r.of {
		if now.Before(one.until) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Partly records that the round did not come to all rows, and which ones it has taken of
// those that were refused before.
func (r *Refused[K]) Partly(taken []K) {
	r.partial = true
	for _, id := range taken {
		delete(r.of, id)
	}
}

// Add records a refusal. known: the row was refused in the rounds before, too. ok is false
// if there are too many.
func (r *Refused[K]) Add(id K, err error, now time.Time) (known, ok bool) {
	before, known := r.of[id]
	if !known && len(r.of) == MostRefused {
		return false, false
	}
	if r.of == nil {
		r.of = map[K]refusal{}
	}
	times := before.times + 1
	r.of[id] = refusal{err, times, now.Add(Pause(times))}
	return known, true
}

// End ends a round that has done all it could: what it has tried and not refused is well
// again. A partial one cannot tell.
func (r *Refused[K]) End() {
	since := r.began
	if r.partial {
		since = since.Add(-forgetAfter)
	}
	maps.DeleteFunc(r.of, func(_ K, one refusal) bool { return !since.Before(one.until) })
}

// Err is about the rows that are set aside, nil if there are none.
func (r *Refused[K]) Err() error {
	if len(r.of) == 0 {
		return nil
	}
	first := r.of[slices.Min(slices.Collect(maps.Keys(r.of)))].err
	if len(r.of) > 1 {
		return fmt.Errorf("%w (and %d more rows)", first, len(r.of)-1)
	}
	return first
}
