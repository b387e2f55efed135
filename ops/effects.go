package ops

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// pendingOf returns what a unit has passed without handling it.
func pendingOf(ctx context.Context, c consumerTx, unit string) ([]store.Range, error) {
	all, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Columns(func(r *store.Range) []any { return []any{&r.First, &r.Last} }), `
SELECT gap_position, gap_end FROM `+c.t.GapSkips.SQL()+` WHERE consumer_name = $1::text AND state = 'open'
UNION ALL
SELECT global_position, global_position FROM `+c.t.DeadLetters.SQL()+` WHERE consumer_name = $1::text`, unit)
	if err != nil {
		return nil, fmt.Errorf("read what is pending: %w", err)
	}
	return all, nil
}

// keepEffects records the events whose effects a unit has had. Call keepEffects before an operation
// changes the unit's checkpoint, its positions in doubt or its dead letters. If the operation moves
// the unit forward, crossed is the position up to which it crosses events. missed are positions that
// the unit has passed without their effects.
func (c consumerTx) keepEffects(ctx context.Context, at locked, crossed int64, missed ...int64) error {
	pending, err := pendingOf(ctx, c, at.consumer)
	if err != nil {
		return err
	}
	_, slots, _ := partition.Parse(at.consumer)
	had := at.effects.Pass(slots, at.key, at.position, pending).Lack(missed)
	if crossed > at.position {
		had = had.Cross(crossed)
	}
	_, err = exec(ctx, c.tx, "keep which effects it has had", `
UPDATE `+c.t.Checkpoints.SQL()+` SET effects = $2::jsonb WHERE consumer_name = $1::text`, at.consumer, had.String())
	return err
}
