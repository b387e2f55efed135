package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

const (
	verifyTask = "verify an aggregate" // in observe.TaskFailed

	minVerifyEvery = time.Second
	verifyLimit    = time.Minute // since the consumer waits
)

// VerifyEvery verifies a drawn aggregate at once, and then one per interval, until ctx ends. An aggregate
// for which [Operator.Verify] returns [ErrNotFound] is skipped. The interval is a second or more. VerifyEvery notifies observers of [observe.Verified], which has numbers of rows and not
// the rows. Without observers, warnings go to slog.Default. Run it in one process, beside the worker or
// elsewhere.
//
// A failure, such as an outage of the database, is notified as [observe.TaskFailed]. VerifyEvery tries
// again after a pause, which grows from the interval to 30 s, if that is longer. A verification of over a
// minute is such a failure, since the consumer waits.
//
// VerifyEvery returns nil at the end of ctx. It returns an error if v is invalid, if the pool is closed,
// or if the handler has ended the transaction.
func (o *verifyOps) VerifyEvery(ctx context.Context, v Verification, every time.Duration, observers ...observe.Observer) error {
	const what = "verify a consumer in intervals"
	err := v.checkDrawn()
	if every < minVerifyEvery {
		err = errtext.Join(err, fmt.Errorf("%w: every is %v, it takes %v or more", ErrInvalid, every, minVerifyEvery))
	}
	if err != nil {
		return o.fail(what, err)
	}
	source := observe.Worker{Kind: observe.KindVerify}
	to := runtime.NewObservers(source, observers, nil)
	failing := runtime.Subject{Condition: observe.ConditionDatabase, Consumer: v.Consumer.Name(), Detail: verifyTask}
	for failures := 0; ; {
		r := recomputation{Verification: v}
		switch err := o.verifyWithin(ctx, &r); {
		case err == nil || r.drewUnhandled(err):
			failures = 0
			to.End(failing)
			if err == nil {
				to.Notify(r.found.event(failing.Consumer))
			}
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrInvalid), errors.Is(err, errVerifyEnded), pgdriver.IsPoolClosed(err):
			return o.fail(what, err)
		default:
			failures++
			to.Begin(failing, err)
			to.Notify(observe.TaskFailed{Worker: source, Task: verifyTask, Consumer: failing.Consumer, Err: o.fail(what, err)})
		}
		if !backoff.Sleep(ctx, max(every, backoff.Infrastructure(failures))) {
			return nil
		}
	}
}

func (o *verifyOps) verifyWithin(ctx context.Context, r *recomputation) error {
	ctx, cancel := context.WithTimeoutCause(ctx, verifyLimit, fmt.Errorf("it took longer than %v, and the consumer waits: call Verify for large aggregates", verifyLimit))
	defer cancel()
	return pgdriver.CutOff(ctx, o.verify(ctx, r))
}

// event returns v without the contents of rows.
func (v Verified) event(consumer string) observe.Verified {
	return observe.Verified{
		Consumer: consumer, AggregateType: v.AggregateType, AggregateID: v.AggregateID, Events: v.Events,
		Missing: len(v.Missing), Unexpected: len(v.Unexpected), Position: v.Position, Err: v.Err,
	}
}
