package ops

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// keepEffects writes down of which events a unit has had the effects, before an operation
// changes what that follows from: its checkpoint, its positions in doubt and its dead
// letters. If the unit goes forward, it crosses the events up to a position. missed are
// positions that it has passed without their effects.
func (o *Operator) keepEffects(ctx context.Context, tx *sql.Tx, at locked, crossed int64, missed ...int64) error {
	pending, err := pgdriver.QueryAll(ctx, tx, func(rows *sql.Rows) (r store.Range, err error) {
		return r, rows.Scan(&r.First, &r.Last)
	}, `
SELECT gap_position, gap_end FROM `+o.t.GapSkips.SQL()+` WHERE consumer_name = $1::text AND state = 'open'
UNION ALL
SELECT global_position, global_position FROM `+o.t.DeadLetters.SQL()+` WHERE consumer_name = $1::text`, at.consumer)
	if err != nil {
		return fmt.Errorf("read what is pending: %w", err)
	}
	_, slots, _ := partition.Parse(at.consumer)
	had := at.effects.Pass(slots, at.key, at.position, pending)
	had = had.Lack(missed)
	if crossed > at.position {
		had = had.Cross(crossed)
	}
	_, err = exec(ctx, tx, "keep which effects it has had", `
UPDATE `+o.t.Checkpoints.SQL()+` SET effects = $2::jsonb WHERE consumer_name = $1::text`, at.consumer, had.String())
	return err
}

// parseEffects reads the borders of a locked unit.
func (at *locked) parseEffects(text string) (err error) {
	if at.effects, err = delivered.Parse(text); err != nil {
		return fmt.Errorf("read which effects %s has had: %w", at.consumer, err)
	}
	return nil
}
