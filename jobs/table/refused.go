package table

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// errUnchanged reports a row that an UPDATE leaves unchanged without an error.
var errUnchanged = errors.New("a trigger or a rule leaves the row unchanged: a BEFORE UPDATE trigger must return NEW")

// conditions are the kinds of statements of a worker: which of them fail, and which rows they leave
// out since the table refuses to change them.
type conditions struct {
	table     ident.Table
	pool      *runtime.Pool
	observers *runtime.Observers

	mu      sync.Mutex
	errs    map[observe.Condition]error // errors of whole statements
	refused map[observe.Condition]*batch.Refused[int64]
	success map[observe.Condition]time.Time // when statements of a kind last succeeded
}

func newConditions(table ident.Table, pool *runtime.Pool, observers *runtime.Observers) *conditions {
	return &conditions{
		table: table, pool: pool, observers: observers, errs: map[observe.Condition]error{}, success: map[observe.Condition]time.Time{},
		refused: map[observe.Condition]*batch.Refused[int64]{observe.ConditionDatabase: {}, observe.ConditionClaim: {}, observe.ConditionHeartbeat: {}, observe.ConditionSettle: {}, observe.ConditionReset: {}},
	}
}

// begin begins a round of statements of a kind. It returns the IDs that the statements leave out.
func (c *conditions) begin(what observe.Condition) (out []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[what].Begin(time.Now())
}

// partly records that the current round did not reach all rows. taken are the rows that were
// refused before and are accepted now.
func (c *conditions) partly(what observe.Condition, taken []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[what].Partly(taken)
}

// refuse records a row that the table refuses to change. It returns an error if too many rows are
// refused.
func (c *conditions) refuse(what observe.Condition, id int64, err error) error {
	err = errtext.Of(fmt.Errorf("jobs/table: %s of job %d: %s refuses it, and others go on: mend the row, or what refuses it: %w", what, id, c.table, err))
	c.mu.Lock()
	known, ok := c.refused[what].Add(id, err, time.Now())
	c.mu.Unlock()
	if !ok {
		return fmt.Errorf("more than %d rows are refused, the last one: %w", batch.MostRefused, err)
	}
	if !known {
		c.observers.Begin(runtime.Subject{Condition: what}, err)
		c.observers.Notify(observe.StatementFailed{Condition: what, Table: c.table.String(), Row: id, Err: err})
	}
	return nil
}

// outcome records whether the statements of a kind work. Refused rows stay recorded.
func (c *conditions) outcome(what observe.Condition, err error) {
	err = errtext.Of(err)
	c.pool.Note(err)
	c.mu.Lock()
	if err == nil {
		c.refused[what].End()
		c.success[what] = time.Now()
	}
	c.errs[what] = err
	c.mu.Unlock()
	if err != nil {
		c.observers.Begin(runtime.Subject{Condition: what}, err)
		c.observers.Notify(observe.StatementFailed{Condition: what, Table: c.table.String(), Err: err})
	} else if c.failure(what) == nil {
		c.observers.End(runtime.Subject{Condition: what})
	}
}

// failure returns why statements of a kind fail, or else which rows are refused.
func (c *conditions) failure(what observe.Condition) error {
	_, _, err := c.shown(what)
	return err
}

// shown returns what a Status shows of statements of a kind. Another worker may settle a row that
// this one could not, and this one may settle none any more.
func (c *conditions) shown(what observe.Condition) (refused int, success time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if what == observe.ConditionSettle {
		c.refused[what].Forget(time.Now())
	}
	if err = c.errs[what]; err == nil {
		refused, err = c.refused[what].Len(), c.refused[what].Err()
	}
	return refused, c.success[what], err
}

// failing returns why whole statements of a kind fail.
func (c *conditions) failing(what observe.Condition) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.errs[what]
}
