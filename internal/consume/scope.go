package consume

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/consume/precedence"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
)

// widenLimit limits how long a start waits for the batch in flight of a consumer.
const widenLimit = 2 * time.Second

const taskScope = "record what a consumer selects"

// widen records this build's scope for each consumer whose recorded scope is smaller.
// Afterwards no batch of the other build commits, whatever the assignments are, and the
// leader assigns the consumer to this build. A batch in flight ends first. A scope that
// cannot be recorded now is recorded when the consumer is assigned to this worker.
func widen(ctx context.Context, e *env, limit time.Duration) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, limit) // coord.Run does not send heartbeats yet
	defer cancel()
	var names []string
	for _, u := range e.units {
		names = append(names, u.name)
	}
	var all []progress.Recorded
	err := e.bounded(ctx, e.limits.quick, into(&all, func(ctx context.Context) ([]progress.Recorded, error) { return e.checkpoints.Scopes(ctx, e.db, names) }))
	e.taskFailed(whole, taskScope, "", err)
	for _, r := range all {
		u := e.unit(partition.Consumer(r.Unit))
		if u == nil || r.Scope == nil || r.Scope.Compare(u.scope) >= 0 {
			continue
		}
		err := e.bounded(ctx, widenLimit, func(ctx context.Context) error {
			d, ok, err := e.checkpoints.Rescope(ctx, e.db, r, u.scope, "", precedence.Reason(r.Scope, u.scope))
			if ok {
				e.rescoped(r.Unit, d)
			}
			return err
		})
		e.taskFailed(whole, taskScope, r.Unit, err)
	}
}

// precedence returns the unit's state of other builds.
func (u *unit) precedence(w *shared) precedence.Precedence {
	about := u.about(observe.ConditionScope)
	return precedence.New(precedence.Unit{
		Name: u.name, Consumer: u.consumerName, Scope: u.scope, Part: u.isPart(), Key: u.demand.Key, Checkpoints: &w.checkpoints,
		Dead:     w.isDead,
		Rescoped: func(d progress.Rescoped) { w.rescoped(u.name, d) },
		Waits: func(why error, begins bool) {
			u.status.setError(why)
			if begins {
				w.observers.Notify(observe.ConsumerWaiting{Consumer: u.name, Condition: observe.ConditionScope, Err: why})
			}
			w.observers.Begin(about, why)
		},
		Over: func(waited bool) {
			if waited {
				u.status.recovered()
			}
			w.observers.End(about)
		},
	})
}

// isDead reports whether another worker is dead.
func (w *shared) isDead(ctx context.Context, worker uuid.UUID) (bool, error) {
	return w.coord.Dead(ctx, w.db.DB, worker)
}
