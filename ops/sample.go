package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/store/consumer"
)

// Sample is the result of [Operator.VerifySample].
type Sample struct {
	Aggregates int        // number of aggregates that were verified
	Events     int        // number of their events that were handled
	Wrong      []Verified // aggregates whose rows differ, or that Handle failed at; at most 100
	MoreWrong  int        // number of further such aggregates

	// Rebuild estimates how long a rebuild takes with this code: the average time of Decoder and
	// Handle for an event, times the number of events in the scope of Consumer up to its position.
	// The estimate does not include reads and commits of batches. It does not see that a rebuild has
	// larger batches, another order of events, and partitions that run in parallel. Events of other
	// types than AggregateType count as if they took the same time.
	Rebuild time.Duration
}

const maxWrong = 100

// VerifySample draws up to limit aggregates, 1 to 10,000. It verifies them as [Operator.Verify] does, one
// after the other in separate transactions. It draws positions, so an aggregate with many events is drawn
// more often than others. An aggregate that is drawn again is not verified again, and one for which Verify returns
// [ErrNotFound] is skipped. For the estimate, VerifySample counts the events in the scope, which reads
// all of them.
//
// Also with an error, such as at the end of ctx, Sample has what was found until then. If no aggregate
// was verified, the error is [ErrNotFound].
func (o *verifyOps) VerifySample(ctx context.Context, v Verification, limit int) (s Sample, err error) {
	if err = errtext.Join(v.checkDrawn(), checkLimit(limit, maxJobs)); err == nil {
		err = o.sample(ctx, v, limit, &s)
	}
	return s, o.fail("verify a sample of a consumer", err)
}

// checkDrawn checks a Verification whose aggregate is drawn.
func (v Verification) checkDrawn() error {
	if err := v.check(); err != nil || v.AggregateID == "" {
		return err
	}
	return fmt.Errorf("%w: AggregateID is %s, and aggregates are drawn: leave it empty, or call Verify", ErrInvalid, errtext.Value(v.AggregateID))
}

func (o *verifyOps) sample(ctx context.Context, v Verification, limit int, s *Sample) error {
	all, err := o.eventsInScope(ctx, v.Consumer)
	if err != nil {
		return err
	}
	drawn := map[string]bool{}
	var took time.Duration
	for range limit {
		r := recomputation{Verification: v, drawn: drawn}
		switch err := o.verify(ctx, &r); {
		case r.drewUnhandled(err):
			drawn[r.AggregateID] = true
			continue
		case err != nil:
			return err
		}
		drawn[r.AggregateID] = true
		took += r.took
		s.add(r.found)
		s.Rebuild = rebuildTime(took, s.Events, all)
	}
	if s.Aggregates == 0 {
		return errNoEvents
	}
	return nil
}

// drewUnhandled reports whether err is that of a drawn aggregate without events to handle, or of one
// that was drawn before.
func (r *recomputation) drewUnhandled(err error) bool {
	return errors.Is(err, errNoEvents) && r.AggregateID != ""
}

// eventsInScope counts the events that a consumer selects, up to the highest position of its units.
func (o *verifyOps) eventsInScope(ctx context.Context, of consumer.Consumer) (n int64, err error) {
	types := []string{}
	if s, ok := of.(consumer.ScopedConsumer); ok {
		types = append(types, s.AggregateTypes()...)
	}
	named, err := json.Marshal(types)
	if err != nil {
		return 0, err
	}
	if err := o.db.QueryRowContext(ctx, `
SELECT count(*) FROM `+o.t.Events.SQL()+`
WHERE `+positionColumn+` <= (SELECT max(last_position) FROM `+o.t.Checkpoints.SQL()+` WHERE (consumer_name = $1::text OR `+unitsOf+`) AND split_at IS NULL)
	AND ($2::jsonb = '[]' OR aggregate_type = ANY (ARRAY(SELECT jsonb_array_elements_text($2::jsonb))))`, of.Name(), string(named)).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the events in its scope: %w", err)
	}
	return n, nil
}

// add adds the result for one aggregate.
func (s *Sample) add(found Verified) {
	s.Aggregates++
	s.Events += found.Events
	switch right := len(found.Missing)+len(found.Unexpected) == 0 && found.Err == nil; {
	case right:
	case len(s.Wrong) < maxWrong:
		s.Wrong = append(s.Wrong, found)
	default:
		s.MoreWrong++
	}
}

// rebuildTime returns how long all events take, if n events took a time.
func rebuildTime(took time.Duration, n int, all int64) time.Duration {
	if n == 0 {
		return 0
	}
	return time.Duration(float64(took) / float64(n) * float64(all))
}
