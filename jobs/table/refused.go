package table

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// errUnchanged reports a row that an UPDATE leaves unchanged without an error.
var errUnchanged = errors.New("a trigger or a rule leaves the row unchanged: a BEFORE UPDATE trigger must return NEW")

// begin begins a round of statements of a kind. It returns the IDs that the statements leave out.
func (w *Worker) begin(what observe.Condition) (out []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused[what].Begin(time.Now())
}

// partly records that the current round did not reach all rows. taken are the rows that were
// refused before and are accepted now.
func (w *Worker) partly(what observe.Condition, taken []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused[what].Partly(taken)
}

// refuse records a row that the table refuses to change. It returns an error if too many rows are
// refused.
func (w *Worker) refuse(what observe.Condition, id int64, err error) error {
	err = errtext.Of(fmt.Errorf("jobs/table: %s of job %d: %s refuses it, and others go on: mend the row, or what refuses it: %w", what, id, w.store.settings.table, err))
	w.mu.Lock()
	known, ok := w.refused[what].Add(id, err, time.Now())
	w.mu.Unlock()
	if !ok {
		return fmt.Errorf("more than %d rows are refused, the last one: %w", batch.MostRefused, err)
	}
	if !known {
		w.observers.Begin(runtime.Subject{Condition: what}, err)
		w.observers.Notify(observe.StatementFailed{Condition: what, Row: id, Err: err})
	}
	return nil
}

// outcome records whether the statements of a kind work. Refused rows stay recorded.
func (w *Worker) outcome(what observe.Condition, err error) {
	err = errtext.Of(err)
	w.pool.Note(err)
	w.mu.Lock()
	if err == nil {
		w.refused[what].End()
	}
	w.errs[what] = err
	left := w.failure(what)
	w.mu.Unlock()
	if err != nil {
		w.observers.Begin(runtime.Subject{Condition: what}, err)
		w.observers.Notify(observe.StatementFailed{Condition: what, Err: err})
	} else if left == nil {
		w.observers.End(runtime.Subject{Condition: what})
	}
}

// failure returns why statements of a kind fail, or else which rows are refused.
func (w *Worker) failure(what observe.Condition) error {
	return cmp.Or(w.errs[what], w.refused[what].Err())
}
