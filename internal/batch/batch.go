// Package batch limits the effect of one bad row on a statement about many rows. A statement that
// fails because of a row is halved until the row is found. The row is then set aside for a while,
// and the other rows proceed. A statement that takes too long gets fewer rows the next time.
package batch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// mostBlind bounds the failed statements before the first success, for errors that may not
// depend on the rows.
const mostBlind = 32

// Each calls f with all rows. If a row made the statement fail, Each halves the rows and calls
// f again, until it has found the row. It then calls refused with the row. Any other error ends
// Each.
//
// An error may also be about the whole statement. It counts as a row's error only if f succeeds
// for other rows and then fails again for this row. For example, a revoked privilege refuses
// all rows. A privilege that a trigger lacks may refuse one row. A lock may be available a
// moment later. If f succeeds for no row, Each returns the error and refuses none. A caller that
// knows that an error is about the row returns [OfRow].
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

// OfRow marks an error of a call of f with one row, if the caller knows that the error is about the
// row and not about the whole statement.
func OfRow(err error) error { return ofRow{err} }

type ofRow struct{ error }

func (e ofRow) Unwrap() error { return e.error }

type search[T any] struct {
	f       func(all []T) error
	refused func(one T, err error) error
	passed  bool  // f has succeeded for some rows
	blind   int   // number of calls that failed before the first success
	doubts  []T   // rows for which f has failed, perhaps because of the whole statement
	first   error // the first error of these
}

func (s *search[T]) each(all []T) error {
	err := s.f(all)
	fault := pgdriver.FaultOf(err)
	var known ofRow
	switch {
	case err == nil && len(all) > 0:
		return s.pass()
	case errors.As(err, &known):
		if err := s.refused(all[0], known.error); err != nil {
			return err
		}
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

// pass records that the statement succeeds for some rows. It then tries the rows in doubt again.
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

// Pace bounds the number of rows of a kind of statement by the time that they take. The zero
// value has no bound.
type Pace struct{ most int }

// Most returns the number of rows of the next statement, from 1 to limit.
func (p *Pace) Most(limit int) int {
	if p.most == 0 {
		return limit
	}
	return min(p.most, limit)
}

// Took records that a statement about n rows took so long, of limit, or that the server
// canceled it. A statement that took limit halves the next number of rows. A statement that
// took less than half of limit doubles the number.
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

// MostRefused bounds the number of rows of a kind that are set aside.
const MostRefused = 1000

// forgetAfter is how long a refusal is kept after its retry was due and no round has tried the
// row. The row may have been deleted.
const forgetAfter = time.Minute

// Refused are the rows of a kind of statement that are set aside. The next rounds leave these
// rows out, for longer each time. Refused is not safe for concurrent use.
type Refused[K cmp.Ordered] struct {
	of      map[K]refusal
	began   time.Time // start of the last round
	partial bool      // the round may not have tried all rows that it did not leave out
}

type refusal struct {
	err   error
	times int
	until time.Time // when the row is tried again
}

// Pause returns the pause after a row was refused so many times in a row.
func Pause(times int) time.Duration {
	return backoff.Delay(times, time.Second, time.Minute, rand.Float64())
}

// Begin begins a round, and returns the rows to leave out.
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

// Partly records that the round did not try all rows. taken are the rows that it has tried.
func (r *Refused[K]) Partly(tried []K) {
	r.partial = true
	for _, id := range tried {
		delete(r.of, id)
	}
}

// Add records a refusal. known reports whether the row was also refused in the rounds before.
// ok is false if there are too many refused rows.
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

// End ends a round. It drops the refusals of rows that the round has tried and not refused. A
// partial round drops only refusals whose retry has long been due.
func (r *Refused[K]) End() {
	if r.partial {
		r.Forget(r.began)
	} else {
		r.drop(r.began)
	}
}

// Forget drops refusals whose retry has long been due. Call it if the next round may be far off.
func (r *Refused[K]) Forget(now time.Time) { r.drop(now.Add(-forgetAfter)) }

// drop drops the refusals whose retry was due at a time.
func (r *Refused[K]) drop(at time.Time) {
	maps.DeleteFunc(r.of, func(_ K, one refusal) bool { return !at.Before(one.until) })
}

// Len returns the number of rows that are set aside.
func (r *Refused[K]) Len() int { return len(r.of) }

// Err returns an error about the rows that are set aside, nil if there are none.
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
