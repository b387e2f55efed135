package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// batchError carries the judged result of a batch to trouble.
type batchError struct {
	result
	events   []store.PersistedEvent
	retried  *progress.Retry // the dead letter that they consist of; nil: they do not
	revision int64           // that its guard asked for
}

func (e *batchError) Error() string { return errtext.Of(e.err).Error() }

func (e *batchError) Unwrap() error { return e.err }

// trouble says how long to pause after the error of a step that began at a
// time, or which error ends the worker.
func (c *consumerLoop) trouble(intake context.Context, began time.Time, err error) (pause time.Duration, fatal error) {
	b := &batchError{result: result{outcome: disturbed, err: err}}
	f := failure{batch: errors.As(err, &b), random: rand.Float64()}
	f.outcome, f.events, f.at = b.outcome, b.events, indexOf(b.events, b.at)
	if f.outcome == lost {
		f.well = c.othersLive(intake, began)
	}
	if intake.Err() != nil && b.outcome != handlerFailed && b.outcome != conflicted {
		return 0, nil // our own stop interrupted it
	}
	f.now = time.Now()
	v := c.tallyOf(b.retried).failed(&c.w.cfg, f)
	switch {
	case v.byHandler:
		return c.failed(intake, b, v)
	case v.exhausted:
		return 0, fmt.Errorf("%w: consumer %q, for %v (WithRetryLimit): %w", ErrOutage, c.unit.name, c.w.cfg.RetryLimit, explain(b.err))
	}
	err = errtext.Of(explain(b.err))
	c.status.disturbed(err)
	about := c.about(TroubleDatabase)
	if b.outcome == conflicted {
		about = c.aboutBatch(TroubleBatch, b.retried)
	}
	c.w.troubled(about, err)
	tell(c.w.observer.Retrying, Retry{Consumer: c.unit.name, Trouble: about.trouble, InARow: v.inARow, Pause: v.pause, Err: err})
	return v.pause, nil
}

// othersLive reports whether the frontier's connection outlived the loss of
// one, in a step that began at a time. A server, or a proxy, that goes down takes
// its connections one after the other: so it waits a little before it asks.
func (c *consumerLoop) othersLive(intake context.Context, began time.Time) bool {
	const after, patience = 100 * time.Millisecond, 2 * time.Second
	if !backoff.Sleep(intake, after) {
		return false
	}
	ctx, cancel := context.WithTimeout(intake, patience)
	defer cancel()
	return c.w.frontier.Outlived(ctx, began)
}
