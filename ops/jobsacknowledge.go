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

// Acknowledged is the result of Acknowledge.
type Acknowledged struct {
	Jobs    int64     // when the last of them failed; the zero Time: there were none
	Through time.Time // when the last of them failed; the zero Time: there were none
}

// Acknowledge records that an operator has seen the failed jobs of a queue. It acknowledges the
// jobs that failed at or before through. The zero Time acknowledges all failed jobs. pgfrontier
// status and doctor, and the overview of the console, then no longer report these jobs. They
// report the queue again when another of its jobs fails. The acknowledged jobs stay in the
// history: Queue.Failed counts them, List lists them, Retry and Discard accept them. An
// acknowledgement cannot be undone.
//
// Acknowledge marks only the jobs whose failure is committed at this moment. A failure that is
// committed later is reported, whatever its time. To acknowledge exactly the jobs that
// [Jobs.Preview] has shown, pass the returned Through in [Jobs.Confirmed]. Jobs that failed in
// between then remain unacknowledged. Jobs whose rows are locked at this moment are skipped.
//
// All marks are one operation. The operation's detail has the number of jobs, the time of the
// last failure, and a digest of the IDs. With the digest, Confirmed finds every difference from
// a Preview.
func (o *Jobs) Acknowledge(ctx context.Context, queue string, through time.Time, by By) (did Acknowledged, err error) {
	invalid := checkQueue(queue)
	if invalid == nil && queue == AllQueues {
		invalid = fmt.Errorf("%w: no job is in queue %q: acknowledge each queue by its name", ErrInvalid, AllQueues)
	}
	if !through.IsZero() && (through.Before(store.EarliestTime) || through.After(store.LatestTime)) {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: through is %v, allowed is %v to %v, or the zero Time", ErrInvalid, through, store.EarliestTime, store.LatestTime))
	}
	err = o.changeJobs(ctx, onQueue(KindAcknowledge, queue, by), invalid, func(tx *sql.Tx) (any, error) {
		bound := "infinity"
		if !through.IsZero() {
			bound = through.UTC().Format(time.RFC3339Nano)
		}
		var d acknowledgeDetail
		if err := tx.QueryRowContext(ctx, o.sql.acknowledge, queue, bound).Scan(&d.Jobs, pgdriver.UTCOrNil(&d.Through), &d.Digest); err != nil {
			return nil, fmt.Errorf("mark the failed jobs: %w", err)
		}
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
	Through *time.Time `json:"through"` // null: no failed jobs, or the time is infinity
	Digest  string     `json:"digest"`  // SHA-256 of their IDs
}
