package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/serial"
)

// Sequence is a sequence that is below an id in its table or in the table's history. Causes are
// a switch to a logical replica, a partial restore, or TRUNCATE ... RESTART IDENTITY. The
// sequence issues ids again until [Jobs.RaiseSequences] raises it.
type Sequence struct {
	Table    string
	Sequence string
	Last     int64 // last id that it has issued; 0: none
	Highest  int64 // highest id in the tables
}

func (s Sequence) String() string {
	return serial.Behind{Table: s.Table, Sequence: s.Sequence, Last: s.Last, Highest: s.Highest}.String()
}

func sequencesOf(found []serial.Behind) (all []Sequence) {
	for _, b := range found {
		all = append(all, Sequence{b.Table, b.Sequence, b.Last, b.Highest})
	}
	return all
}

// errRaised rolls the transaction back if the sequence does not need to be raised.
var errRaised = errors.New("another operator has raised it")

// raise raises each sequence that is below an id. add keeps the operation of a dry run, and
// change runs one operation.
func raise(ctx context.Context, db pgdriver.Pool, all []serial.Serial, dry bool, add func(detail json.RawMessage), change func(do func(tx *sql.Tx) (detail any, err error)) error) (raised []Sequence, err error) {
	for _, s := range all {
		found, err := serial.Find(ctx, db, s)
		switch {
		case err != nil:
			return raised, fmt.Errorf("ops: raise the sequences: %w", explain(err))
		case len(found) == 0:
			continue
		case dry:
			detail, err := json.Marshal(found[0])
			if err != nil {
				return raised, err
			}
			add(detail) // setval cannot be rolled back, so a dry run must not call it
		default:
			err := change(func(tx *sql.Tx) (any, error) {
				was, err := s.Raise(ctx, tx)
				if err == nil && was == nil {
					err = errRaised
				}
				if err == nil {
					found[0] = *was
				}
				return found[0], err
			})
			if errors.Is(err, errRaised) {
				continue
			}
			if err != nil {
				return raised, err
			}
		}
		raised = append(raised, sequencesOf(found)...)
	}
	return raised, nil
}

// Sequences returns the sequences of the tables of jobs that are below an id. It omits
// sequences that this role may not read.
func (o *Jobs) Sequences(ctx context.Context) ([]Sequence, error) {
	found, err := serial.Find(ctx, o.db, serial.Jobs(o.t)...)
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: compare the sequences of jobs: %w", o.explain(err)))
	}
	return sequencesOf(found), nil
}

// RaiseSequences raises the sequences that Sequences returns to the highest id, each in its own
// transaction. It returns the sequences as they were. Writers to a table wait while its
// sequence is raised. The role must own the tables. RaiseSequences does not change a correct
// sequence.
//
// Jobs that were enqueued under an id of the history stay as they are. When a worker runs such
// a job, its error has the remedy.
func (o *Jobs) RaiseSequences(ctx context.Context, by By) ([]Sequence, error) {
	if err := by.check(); err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: raise the sequences: %w", err))
	}
	raised, err := raise(ctx, o.db, serial.Jobs(o.t), o.dry != nil && o.dry.accept == nil, func(detail json.RawMessage) {
		o.dry.add(Operation{Kind: KindRaise, Detail: detail, By: by, At: time.Now().UTC()})
	}, func(do func(tx *sql.Tx) (any, error)) error {
		return o.change(ctx, KindRaise, &target{}, by, nil, do)
	})
	return raised, errtext.Of(err)
}

// Sequences returns the sequences of the tables of consumers that are below an id, as
// [Jobs.Sequences] does. It omits the sequence of the log: a worker does not start if that is
// below a position.
func (o *Operator) Sequences(ctx context.Context) ([]Sequence, error) {
	found, err := serial.Find(ctx, o.db, serial.Consumers(o.t)...)
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: compare the sequences of consumers: %w", explain(err)))
	}
	return sequencesOf(found), nil
}

// RaiseSequences raises the sequences that Sequences returns, as [Jobs.RaiseSequences] does.
func (o *Operator) RaiseSequences(ctx context.Context, by By) ([]Sequence, error) {
	if err := by.check(); err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: raise the sequences: %w", err))
	}
	raised, err := raise(ctx, o.db, serial.Consumers(o.t), o.dry != nil && o.dry.accept == nil, func(detail json.RawMessage) {
		o.dry.add(Operation{Kind: KindRaise, Detail: detail, By: by, At: time.Now().UTC()})
	}, func(do func(tx *sql.Tx) (any, error)) error {
		err := audited(ctx, o.db, o.t.Changes, o.dry, func(tx *sql.Tx) (int64, error) {
			detail, err := do(tx)
			if err != nil {
				return 0, err
			}
			return o.record(ctx, tx, KindRaise, "", by, detail)
		})
		if err != nil {
			return fmt.Errorf("ops: raise the sequences: %w", explain(err))
		}
		return nil
	})
	return raised, errtext.Of(err)
}
