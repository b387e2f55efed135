package ops

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Acknowledged says what Acknowledge did.
type Acknowledged struct {
	Jobs    int64     // how many failed jobs were acknowledged
	Through time.Time // when the last of them failed; the zero Time: there were none
}

// Acknowledge records that the failed jobs of a queue were seen. It acknowledges those that failed
// at through or before; the zero Time takes all. pgfrontier status and doctor, and the overview of
// the console, do not tell of them any more. They tell of the queue again when another job of it
// fails. The jobs stay in the history, as they were: Queue.Failed counts them, List lists them,
// Retry and Discard take them. Nothing takes an acknowledgement back.
//
// Each job is marked, and only those that are committed at this moment are. A failure that is
// committed later is told, whenever it happened. For what [Jobs.Preview] has shown, pass the Through
// that it has returned, to [Jobs.Confirmed]: jobs that fail in between then wait for the next time.
// Jobs that somebody changes at this moment are passed over.
//
// It is one operation. Its detail has how many jobs there were, when the last one failed, and a
// digest of their IDs, so that Confirmed finds any difference.
func (o *Jobs) Acknowledge(ctx context.Context, queue string, through time.Time, by By) (did Acknowledged, err error) {
	invalid := checkQueue(queue)
	if invalid == nil && queue == AllQueues {
		invalid = fmt.Errorf("%w: no job is in queue %q: acknowledge each queue by its name", ErrInvalid, AllQueues)
	}
	if !through.IsZero() && (through.Before(store.EarliestTime) || through.After(store.LatestTime)) {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: through is %v, allowed is %v to %v, or the zero Time", ErrInvalid, through, store.EarliestTime, store.LatestTime))
	}
	err = o.change(ctx, KindAcknowledge, &about{queue: queue}, by, invalid, func(tx *sql.Tx) (any, error) {
		bound := "infinity"
		if !through.IsZero() {
			bound = through.UTC().Format(time.RFC3339Nano)
		}
		var last sql.NullTime
		var d acknowledgeDetail
		if err := tx.QueryRowContext(ctx, o.acknowledgeSQL(), queue, bound).Scan(&d.Jobs, &last, &d.Digest); err != nil {
			return nil, fmt.Errorf("mark the failed jobs: %w", err)
		}
		d.Through = timeOf(last)
		did = Acknowledged{Jobs: d.Jobs}
		if d.Through != nil {
			did.Through = *d.Through
		}
		return d, nil
	})
	if err != nil {
		return Acknowledged{}, err
	}
	return did, nil
}

type acknowledgeDetail struct {
	Jobs    int64      `json:"jobs"`
	Through *time.Time `json:"through"` // null: there were none, or infinity
	Digest  string     `json:"digest"`  // SHA-256 of their IDs
}

// acknowledgeSQL marks the jobs that nobody else has locked, and returns how many, when the last
// one failed, and a digest of their IDs.
func (o *Jobs) acknowledgeSQL() string {
	return `
WITH seen AS MATERIALIZED (
	SELECT id FROM ` + o.t.History.SQL() + `
	WHERE state = 'failed' AND acknowledged_at IS NULL AND queue = $1::text AND finished_at <= $2::timestamptz
	FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
	UPDATE ` + o.t.History.SQL() + ` AS h SET acknowledged_at = statement_timestamp() FROM seen WHERE h.id = seen.id
	RETURNING h.id, h.finished_at
), done AS (
	SELECT count(*) AS n, max(finished_at) AS last, string_agg(id::text, ' ' ORDER BY id) AS ids FROM marked
)
SELECT n, ` + pgdriver.TimeOrNever(`last`) + `, encode(sha256(convert_to(coalesce(ids, ''), 'UTF8')), 'hex') FROM done`
}
