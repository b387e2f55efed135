package table

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/hooks"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// errUnchanged is a row that an UPDATE leaves as it is, without an error.
var errUnchanged = errors.New("a trigger or a rule leaves the row unchanged: a BEFORE UPDATE trigger must return NEW")

// isRows reports whether the server has refused something in one row: a value, or what a
// constraint, a trigger or a policy of the user's does not allow.
func isRows(err error) bool {
	s := pgdriver.SQLState(err)
	if len(s) != 5 {
		return false
	}
	class := s[:2]
	// SQL leaves the classes from I on to others: a trigger may raise them.
	own := class[0] >= 'I' && class != "XX"
	return own || slices.Contains([]string{"09", "21", "22", "23", "27", "38", "39", "44"}, class) || pgdriver.IsRowSecurity(err)
}

// halved calls f with all. While the server refuses something in a row, it calls f with
// each half, until it has found the row: it calls refused with that. Another error ends it.
func halved[T any](all []T, f func(all []T) error, refused func(one T, err error) error) error {
	err := f(all)
	switch {
	case !isRows(err) || len(all) == 0:
		return err
	case len(all) == 1:
		return refused(all[0], err)
	}
	half := len(all) / 2
	if err := halved(all[:half], f, refused); err != nil {
		return err
	}
	return halved(all[half:], f, refused)
}

// mostRefused bounds how many rows a statement leaves out.
const mostRefused = 1000

// refusals are the rows that the table has refused to change by a kind of statement. The
// next rounds leave them out, for longer each time.
type refusals struct {
	of      map[int64]refusal
	began   time.Time // the last round
	partial bool      // it may not have come to all that it did not leave out
}

// forgetAfter is for how long a refusal is remembered that may be tried again and that no
// round comes to: its row may have been deleted.
const forgetAfter = time.Minute

type refusal struct {
	err   error
	times int
	until time.Time // when it is tried again
}

// begin begins a round, and returns what it leaves out.
func (r *refusals) begin(now time.Time) (out []int64) {
	r.began, r.partial = now, false
	for id, one := range r.of {
		if now.Before(one.until) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// add takes note of a refusal. known: the row was refused in the rounds before, too. ok is
// false if there are too many.
func (r *refusals) add(id int64, err error, now time.Time) (known, ok bool) {
	before, known := r.of[id]
	if !known && len(r.of) == mostRefused {
		return false, false
	}
	if r.of == nil {
		r.of = map[int64]refusal{}
	}
	times := before.times + 1
	r.of[id] = refusal{err, times, now.Add(backoff.Delay(times, time.Second, time.Minute, rand.Float64()))}
	return known, true
}

// end ends a round that has done all it could: what it has tried and not refused is well
// again. A partial one cannot tell.
func (r *refusals) end() {
	since := r.began
	if r.partial {
		since = since.Add(-forgetAfter)
	}
	maps.DeleteFunc(r.of, func(_ int64, one refusal) bool { return !since.Before(one.until) })
}

// err is about the rows that are left, nil if there are none.
func (r *refusals) err() error {
	if len(r.of) == 0 {
		return nil
	}
	first := r.of[slices.Min(slices.Collect(maps.Keys(r.of)))].err
	if len(r.of) > 1 {
		return fmt.Errorf("%w (and %d more rows)", first, len(r.of)-1)
	}
	return first
}

// begin begins a round of statements of a kind. It returns the ids that they leave out.
func (w *Worker) begin(what string) (out []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused[what].begin(time.Now())
}

// partly says that the round which has begun did not come to all rows, and which ones were
// taken of those that were refused before.
func (w *Worker) partly(what string, taken []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.refused[what]
	r.partial = true
	for _, id := range taken {
		delete(r.of, id)
	}
}

// refuse takes note of a row that the table refuses to change. It returns an error if
// these are too many.
func (w *Worker) refuse(what string, id int64, err error) error {
	err = errtext.Of(fmt.Errorf("jobs/table: %s of job %d: %s refuses it, and others go on: mend the row, or what refuses it: %w", what, id, w.store.settings.table, err))
	w.mu.Lock()
	known, ok := w.refused[what].add(id, err, time.Now())
	w.mu.Unlock()
	if !ok {
		return fmt.Errorf("more than %d rows are refused, the last one: %w", mostRefused, err)
	}
	if !known {
		w.troubles.Begin(what)
		hooks.Tell(w.voice, "Failed", func(o *Observer) func(Trouble) { return o.Failed }, Trouble{what, id, err})
	}
	return nil
}

// outcome takes note of whether something works. What is refused is not over by that.
func (w *Worker) outcome(what string, err error) {
	err = errtext.Of(err)
	if pgdriver.IsPoolClosed(err) {
		w.closedOnce.Do(func() { close(w.closed) })
	}
	w.mu.Lock()
	if err == nil {
		w.refused[what].end()
	}
	w.errs[what] = err
	left := w.trouble(what)
	w.mu.Unlock()
	if err != nil {
		w.troubles.Begin(what)
		hooks.Tell(w.voice, "Failed", func(o *Observer) func(Trouble) { return o.Failed }, Trouble{What: what, Err: err})
	} else if left == nil {
		if lasted, was := w.troubles.End(what); was {
			hooks.Tell(w.voice, "Recovered", func(o *Observer) func(Recovery) { return o.Recovered }, Recovery{what, lasted})
		}
	}
}

// trouble is why something does not work, or else which rows are refused.
func (w *Worker) trouble(what string) error {
	return cmp.Or(w.errs[what], w.refused[what].err())
}

// array is a list as text.
func array(ids []int64) string {
	return "{" + strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]") + "}"
}
