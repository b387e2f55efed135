package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/stage"
)

const idsTaken history.Fault = "running jobs whose id the history had already"

// mannerFaults are manners of callers, clocks and other programs, and what differs between
// the workers of a deployment.
var mannerFaults = []faultRow{
	{Row: stage.SettingsRow, build: func(s *Scenario, dice *rand.Rand) { s.settings = stage.DrawSettings(dice) }},
	{Row: stage.TimeoutsRow, build: func(s *Scenario, dice *rand.Rand) {
		stage.ScaleTimeouts(dice, &s.Knobs.HeartbeatInterval, &s.Knobs.HeartbeatTimeout)
	}},
	{Row: stage.ClockRow, worker: at((*slot).setClock, inRun, afterClaim)},
	{Row: stage.LeftRow, worker: at(func(s *slot, ctx, _ context.Context, _ point) error { s.LeaveTransaction(ctx); return nil }, inRun, inRun)},
	{Row: stage.SnapshotRow, worker: at(func(s *slot, ctx, intake context.Context, _ point) error { return s.HoldSnapshot(ctx, intake) }, inRun)},
	{Row: fault.New("odd-time", "enqueues jobs with an infinite or far time", stage.OddTimes), end: ending{0.05, (*enqueuer).enqueueOddly}},
	{Row: fault.New("ids", "puts another job with the id of a running one into the history, until an operator removes it", idsTaken),
		operator: (*operator).takeID},
}

// setClock is the same fault as that of workers of consumers.
func (s *slot) setClock(ctx, intake context.Context, at point) error {
	s.of.faultAll()
	if err := s.ShiftTimes(ctx, "jobs_workers", "jobs_leader"); err != nil || !fault.Chance(s.Dice, 0.5) {
		return err
	}
	return s.crash(ctx, intake, at)
}

// enqueueOddly commits jobs that are due since the beginning of time, or were made at its
// end, as programs do that write the table themselves.
func (e *enqueuer) enqueueOddly(ctx, intake context.Context, a *enqueueAttempt) error {
	var ids []int64
	for _, x := range a.entries {
		if x.ID > 0 && !x.Existing && !x.Far {
			ids = append(ids, x.ID)
		}
	}
	made, due := fault.OneOf(e.dice, stage.Times...), fault.OneOf(e.dice, "-infinity", "4713-01-01 BC")
	var some bool
	err := a.tx.QueryRow(ctx, `WITH odd AS (UPDATE jobs SET created_at = $2::timestamptz, run_at = $3::timestamptz WHERE id = ANY ($1::bigint[]) RETURNING id)
SELECT EXISTS (SELECT FROM odd)`, ids, made, due).Scan(&some)
	if err != nil {
		return err
	}
	if some {
		e.of.Tally.Add(stage.OddTimes, 1)
	}
	return e.commit(ctx, intake, a)
}

// occupied is the kind of the jobs in the history that are in the way.
const occupied = "occupied"

// takeID puts a job into the history with the id of a running job. The outcome of the running job
// cannot be stored until the other is removed. The handler of the running job completes nothing
// itself.
func (o *operator) takeID(ctx, intake context.Context) error {
	o.of.unableAll()
	var id int64
	err := o.of.on.DB.QueryRowContext(ctx, `
INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state)
SELECT id, $1::text, queue, 5, now(), '{}', now(), 1, 0, 0, 5, 'completed' FROM jobs WHERE state = 'running' AND kind = $2::text ORDER BY started_at DESC NULLS LAST LIMIT 1
ON CONFLICT DO NOTHING RETURNING id`, occupied, batchTask{}.Kind()).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		o.did(idsTaken, "", fmt.Sprintf("job %d", id))
		backoff.Sleep(intake, fault.Between(o.dice, 100*time.Millisecond, 2*time.Second))
	}
	o.of.unableAll()
	return errors.Join(err, o.of.on.Steadily(ctx, func() error { // also if a crash took the answer
		_, err := o.of.on.DB.ExecContext(ctx, `DELETE FROM jobs_history WHERE kind = $1::text`, occupied)
		return err
	}))
}
