package ops

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
)

// Partition fixes the number of a consumer's partitions, 1 to 256. With 0, the partition demand
// of the workers' code applies again. The workers change the number of partitions while they
// run. While a number is fixed, the demands of all builds are ignored. A build without
// partition support is ignored, too. These builds run no unit of a split consumer.
//
// Fix 1 before you deploy such a build, and before you change the consumer's key. Wait until
// [Operator.Consumers] shows no units.
func (o *Operator) Partition(ctx context.Context, consumer string, n int, by By) error {
	var invalid error
	if n < 0 || n > partition.MaxCount {
		invalid = fmt.Errorf("%w: %d partitions, allowed is 0 to %d", ErrInvalid, n, partition.MaxCount)
	}
	v := onConsumer(KindPartition, consumer, by)
	return o.change(ctx, v, errtext.Join(checkConsumer(consumer), invalid), func(tx *sql.Tx) (int64, error) {
		c := o.in(tx)
		own, _, err := c.lockOwn(ctx, consumer)
		if err == nil {
			err = refuseRenamed(ctx, c, consumer, own.position)
		}
		if err == nil {
			err = c.checkRevision(ctx, consumer)
		}
		if err != nil {
			return 0, err
		}
		d := partitionDetail{Partitions: n}
		err = c.tx.QueryRowContext(ctx, `
UPDATE `+o.t.Checkpoints.SQL()+` AS c SET partitions = nullif($2::int, 0) FROM `+o.t.Checkpoints.SQL()+` AS before
WHERE c.consumer_name = $1::text AND before.consumer_name = $1::text RETURNING coalesce(before.partitions, 0)`, consumer, n).Scan(&d.Before)
		if err != nil {
			return 0, fmt.Errorf("fix the number: %w", err)
		}
		return o.record(ctx, tx, v.Operation, d)
	})
}

type partitionDetail struct {
	Before     int `json:"before"`
	Partitions int `json:"partitions"`
}
