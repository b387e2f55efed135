package ops

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
)

// Partition fixes the number of a consumer's partitions, 1 to 256; 0: it is again
// what the workers' code wishes for. The workers change it while they run. What
// their code wishes does not count then, nor do programs from before there were
// partitions: those run no part of a consumer that is split.
//
// Fix 1 before going back to such a program, and before the consumer gets another
// key. Wait until [Operator.Consumers] shows no units.
func (o *Operator) Partition(ctx context.Context, consumer string, n int, by By) error {
	var invalid error
	if n < 0 || n > partition.MaxCount {
		invalid = fmt.Errorf("%w: %d partitions, allowed is 0 to %d", ErrInvalid, n, partition.MaxCount)
	}
	return o.operate(ctx, KindPartition, consumer, errtext.Join(checkConsumer(consumer), invalid, by.check()), func(tx *sql.Tx) (int64, error) {
		_, _, err := o.lockOwn(ctx, tx, consumer)
		if err == nil {
			err = o.unmoved(ctx, tx, consumer)
		}
		if err != nil {
			return 0, err
		}
		d := partitionDetail{Partitions: n}
		err = tx.QueryRowContext(ctx, `
UPDATE `+o.t.Checkpoints.SQL()+` AS c SET partitions = nullif($2::int, 0) FROM `+o.t.Checkpoints.SQL()+` AS before
WHERE c.consumer_name = $1::text AND before.consumer_name = $1::text RETURNING coalesce(before.partitions, 0)`, consumer, n).Scan(&d.Before)
		if err != nil {
			return 0, fmt.Errorf("fix the number: %w", err)
		}
		return o.record(ctx, tx, KindPartition, consumer, by, d)
	})
}

type partitionDetail struct {
	Before     int `json:"before"`
	Partitions int `json:"partitions"`
}
