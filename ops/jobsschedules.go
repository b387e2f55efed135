package ops

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// scheduleOps are the operations on schedules.
type scheduleOps struct{ *jobsCore }

// ScheduleInfo is the state of a schedule of package jobs/schedule.
type ScheduleInfo struct {
	Name   string
	Next   time.Time // the next tick; zero: there is none
	Last   time.Time // the latest tick that a process has handled; zero: none yet
	Paused *Pause    // nil: it is not paused
	// Overdue is how long ago the next tick was, by the database's clock. If it is more than
	// some seconds, no running process has the schedule, or its job cannot be enqueued. This
	// also holds for a paused schedule, since processes drop its ticks in time.
	Overdue time.Duration
}

// Schedules lists all schedules by name.
func (o *scheduleOps) Schedules(ctx context.Context) ([]ScheduleInfo, error) {
	return read(ctx, &o.core, "list the schedules", nil, pgdriver.Columns(func(s *ScheduleInfo) []any {
		to := append([]any{&s.Name, pgdriver.UTC(&s.Next), pgdriver.UTC(&s.Last)}, pauseInto(&s.Paused)...)
		return append(to, pgdriver.Duration(&s.Overdue))
	}), `
SELECT name, `+pgdriver.TimeOrNever(`next_at`)+`, `+pgdriver.Time(`last_at`)+`, `+pgdriver.Time(`paused_at`)+`, paused_by, paused_reason,
	coalesce(`+pgdriver.Age(`next_at`)+`, 0)
FROM `+o.t.Schedules.SQL()+` ORDER BY name COLLATE "C"`)
}

// PauseSchedule drops the ticks of a schedule until ResumeSchedule. No job is enqueued for them
// later. If the schedule is already paused, PauseSchedule changes nothing and returns [ErrUnchanged].
func (o *scheduleOps) PauseSchedule(ctx context.Context, name string, by By) error {
	return o.onSchedule(ctx, KindPause, name, by, func(c jobsTx, paused *Pause) (any, error) {
		if paused != nil {
			return nil, pausedError(paused)
		}
		_, err := exec(ctx, c.tx, "pause", `UPDATE `+o.t.Schedules.SQL()+`
SET paused_at = clock_timestamp(), paused_by = $2::text, paused_reason = $3::text WHERE name = $1::text`, name, by.Operator, by.Reason)
		return scheduleDetail{Schedule: name}, err
	})
}

// ResumeSchedule resumes a paused schedule. The schedule enqueues jobs from the first tick
// after now on, also if no process ran during the pause. ResumeSchedule returns [ErrUnchanged]
// if the schedule is not paused.
func (o *scheduleOps) ResumeSchedule(ctx context.Context, name string, by By) error {
	return o.onSchedule(ctx, KindResume, name, by, func(c jobsTx, paused *Pause) (any, error) {
		if paused == nil {
			return nil, errNotPaused
		}
		_, err := exec(ctx, c.tx, "resume", `UPDATE `+o.t.Schedules.SQL()+`
SET paused_at = NULL, paused_by = NULL, paused_reason = NULL, resumed_at = clock_timestamp() WHERE name = $1::text`, name)
		return scheduleDetail{name, &paused.Since}, err
	})
}

// RemoveSchedule removes the row of a schedule that no program has any more. A process that
// still runs the schedule creates the row again within seconds.
func (o *scheduleOps) RemoveSchedule(ctx context.Context, name string, by By) error {
	return o.onSchedule(ctx, KindRetire, name, by, func(c jobsTx, _ *Pause) (any, error) {
		_, err := exec(ctx, c.tx, "remove", `DELETE FROM `+o.t.Schedules.SQL()+` WHERE name = $1::text`, name)
		return scheduleDetail{Schedule: name}, err
	})
}

type scheduleDetail struct {
	Schedule string     `json:"schedule"`
	Since    *time.Time `json:"paused_since,omitempty"` // only in a resume
}

// onSchedule changes a schedule whose row it locks.
func (o *scheduleOps) onSchedule(ctx context.Context, kind Kind, name string, by By, do func(c jobsTx, paused *Pause) (any, error)) error {
	v := &verb{Operation{Kind: kind, By: by}, "schedule " + errtext.Value(name)}
	return o.changeJobs(ctx, v, checkText("the schedule's name", name, maxQueueName), func(c jobsTx) (any, error) {
		var paused *Pause
		err := c.tx.QueryRowContext(ctx, `
SELECT `+pgdriver.Time(`paused_at`)+`, paused_by, paused_reason FROM `+o.t.Schedules.SQL()+` WHERE name = $1::text FOR UPDATE`, name).Scan(pauseInto(&paused)...)
		switch {
		case noRows(err):
			return nil, errNoSchedule
		case err != nil:
			return nil, lockError(ctx, "its row in "+o.t.Schedules.String(), "a process or another operator keeps for a moment", err)
		}
		return do(c, paused)
	})
}
