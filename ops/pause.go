package ops

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
)

// Pause keeps the workers from handling events of a consumer, until Resume. A batch in flight
// is finished first. If the consumer is already paused, Pause changes nothing and returns
// [ErrUnchanged]. consumer may name one unit of a split consumer. Paused units are not merged.
func (o *Operator) Pause(ctx context.Context, consumer string, by By) error {
	running := func(_ consumerTx, units []locked) ([]locked, error) {
		first := units[0].paused
		units = slices.DeleteFunc(units, func(at locked) bool { return at.paused != nil })
		if len(units) == 0 {
			return nil, pausedError(first)
		}
		return units, nil
	}
	return o.changeUnits(ctx, onConsumer(KindPause, consumer, by), nil, running, func(c consumerTx, at locked) (any, error) {
		_, err := exec(ctx, c.tx, "pause", `
UPDATE `+o.t.Checkpoints.SQL()+` SET paused_at = clock_timestamp(), paused_by = $2::text, paused_reason = $3::text
WHERE consumer_name = $1::text`, at.consumer, by.Operator, by.Reason)
		return pauseDetail{Position: at.position}, err
	})
}

// Resume lets a paused consumer continue from its checkpoint. It returns ErrUnchanged if the
// consumer is not paused. consumer may name one unit of a split consumer.
func (o *Operator) Resume(ctx context.Context, consumer string, by By) error {
	paused := func(_ consumerTx, units []locked) ([]locked, error) {
		units = slices.DeleteFunc(units, func(at locked) bool { return at.paused == nil })
		if len(units) == 0 {
			return nil, errNotPaused
		}
		return units, nil
	}
	return o.changeUnits(ctx, onConsumer(KindResume, consumer, by), nil, paused, func(c consumerTx, at locked) (any, error) {
		_, err := exec(ctx, c.tx, "resume", `
UPDATE `+o.t.Checkpoints.SQL()+` SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
WHERE consumer_name = $1::text`, at.consumer)
		return pauseDetail{Position: at.position, Since: &at.paused.Since}, err
	})
}

func pausedError(p *Pause) error {
	return fmt.Errorf("%w: since %s, by %s, because %s", errPaused, p.Since.Format(time.RFC3339), errtext.Value(p.By.Operator), errtext.Value(p.By.Reason))
}

type pauseDetail struct {
	Position int64      `json:"position"`
	Since    *time.Time `json:"paused_since,omitempty"` // only in a resume
}
