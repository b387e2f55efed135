package frontier

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Settled returns the position up to which a log is complete. Every position up to Settled is
// visible to later statements, or void. The position comes from the durable row that running
// frontiers raise about once a second. Settled returns 0 if no frontier has written the row
// yet. The error is a [SetupError] if the proof does not hold for the log.
//
// Settled may be called within a READ COMMITTED transaction. It takes no lock that a frontier
// waits for.
func Settled(ctx context.Context, q store.Querier, log store.SequenceNamer, settled ident.Table) (int64, error) {
	var o origin
	if err := o.find(ctx, q, log); err != nil {
		return 0, err
	}
	// One statement computes the key, as origin.key does, and reads the row. So the row of a
	// sequence that was restarted in between is not used. A row above the last value is older
	// than a restart of the sequence.
	var position int64
	err := q.QueryRowContext(ctx, `
SELECT coalesce((
	SELECT t.settled FROM `+settled.SQL()+` AS t
	WHERE t.log = ((s.tableoid::bigint << 32) | coalesce(pg_relation_filenode(s.tableoid), 0)::bigint) AND t.settled <= s.last_value), 0)
FROM `+o.sequence+` AS s WHERE s.tableoid = $1::bigint::oid`, o.sequenceOID).Scan(&position)
	if err != nil {
		return 0, fmt.Errorf("frontier: read the settled position of %s: %w", o.table, err)
	}
	return position, nil
}
