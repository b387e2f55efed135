package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/pgfrontier/worker/internal/serial"
)

// Sequence is a sequence that is below an id in its table or in the table's history. Causes are
// a switch to a logical replica, a partial restore, or TRUNCATE ... RESTART IDENTITY. The
// sequence issues ids again until RaiseSequences raises it.
type Sequence struct {
	Table    string
	Sequence string
	Last     int64 // last id that it has issued; 0: none
	Highest  int64 // highest id in the tables
}

func (s Sequence) String() string {
	return serial.Behind{Table: s.Table, Sequence: s.Sequence, Last: s.Last, Highest: s.Highest}.String()
}

// Sequences returns the sequences of the Operator's or the Jobs' tables that are below an id. It
// omits sequences that this role may not read. It also omits the sequence of the log: a worker
// does not start if that is below a position.
func (c *core) Sequences(ctx context.Context) ([]Sequence, error) {
	found, err := serial.Find(ctx, c.db, c.serials...)
	return sequencesOf(found), c.fail("compare the sequences"+c.what, err)
}

func sequencesOf(found []serial.Behind) (all []Sequence) {
	for _, b := range found {
		all = append(all, Sequence{b.Table, b.Sequence, b.Last, b.Highest})
	}
	return all
}

// RaiseSequences raises the sequences that Sequences returns to the highest id, in a transaction
// per sequence. It returns the sequences as they were. Writers to a table wait while its sequence
// is raised. The role must own the tables. RaiseSequences does not change a correct sequence.
//
// Jobs that were enqueued under an id of the history stay as they are. When a worker runs such
// a job, its error has the remedy.
func (c *core) RaiseSequences(ctx context.Context, by By) (raised []Sequence, err error) {
	v := &verb{Operation{Kind: KindRaise, By: by}, "the sequences" + c.what}
	if err := by.check(); err != nil {
		return nil, c.fail(v.String(), err)
	}
	for _, s := range c.serials {
		found, err := serial.Find(ctx, c.db, s)
		switch {
		case err != nil:
			return raised, c.fail(v.String(), err)
		case len(found) == 0:
			continue
		case c.dry != nil && c.dry.accept == nil:
			op := v.Operation
			op.Detail, err = json.Marshal(found[0])
			op.At = time.Now().UTC()
			c.dry.add(op) // setval cannot be rolled back, so a dry run must not call it
		default:
			found, err = c.raise(ctx, v, s)
		}
		if err != nil {
			return raised, err
		}
		raised = append(raised, sequencesOf(found)...)
	}
	return raised, nil
}

// errRaised rolls the transaction back if the sequence does not need to be raised.
var errRaised = errors.New("another operator has raised it")

// raise raises a sequence, and returns it as it was. It returns none if another operator has
// raised the sequence.
func (c *core) raise(ctx context.Context, v *verb, s serial.Serial) (was []serial.Behind, err error) {
	err = c.change(ctx, v, nil, func(tx *sql.Tx) (int64, error) {
		if err := setLimits(ctx, tx); err != nil {
			return 0, err
		}
		raised, err := s.Raise(ctx, tx)
		if err == nil && raised == nil {
			err = errRaised
		}
		if err != nil {
			return 0, err
		}
		was = []serial.Behind{*raised}
		return c.record(ctx, tx, v.Operation, *raised)
	})
	if errors.Is(err, errRaised) {
		return nil, nil
	}
	return was, err
}
