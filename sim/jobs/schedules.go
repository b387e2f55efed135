package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// workerSchedule is a schedule that every worker has, with the times of the worker's version.
type workerSchedule struct {
	name    string
	catchUp int
	job     func(task) jobs.Args
	periods []time.Duration // of the versions, which take turns
}

var workerSchedules = []workerSchedule{
	{"second", 1000, kinds[1], []time.Duration{time.Second}},
	{"quick", 1, kinds[0], []time.Duration{250 * time.Millisecond}},
	{"few", 3, kinds[3], []time.Duration{400 * time.Millisecond}},
	{"deployed", 1, kinds[0], []time.Duration{700 * time.Millisecond, 300 * time.Millisecond}},
}

// operated are the schedules that operators pause and remove.
var operated = workerSchedules[1:]

// multiples is a Spec with a tick at each multiple of a period.
type multiples time.Duration

func (m multiples) Next(t time.Time) time.Time {
	period := time.Duration(m).Microseconds()
	return time.UnixMicro((t.UnixMicro()/period + 1) * period)
}

// of is the schedule of a version.
func (s workerSchedule) of(version int64) schedule.Schedule {
	period := s.periods[version%int64(len(s.periods))]
	var spec schedule.Spec = multiples(period)
	if period >= time.Second {
		spec = schedule.Every(period)
	}
	return schedule.Job(s.name, spec, func(tick time.Time) jobs.Args {
		return s.job(task{Token: fmt.Sprintf("%s%s %d", tickToken, s.name, tick.UnixMicro())})
	}, schedule.CatchUp(s.catchUp))
}

// tickToken is what the token of a tick begins with.
const tickToken = "tick "

func (s workerSchedule) String() string {
	var periods []string
	for _, p := range s.periods {
		periods = append(periods, p.String())
	}
	return fmt.Sprintf("%s (each %s, %d late)", s.name, strings.Join(periods, " or "), s.catchUp)
}

// start runs the worker and, beside it, its schedules.
func (n *node) start(ctx context.Context) error {
	ctx, over := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.runSchedules(ctx)
	}()
	defer func() { over(); <-ended }()
	return n.worker.Start(ctx)
}

// runSchedules runs the schedules until ctx ends. If they could not start, as the server was away,
// it starts them again.
func (n *node) runSchedules(ctx context.Context) {
	var all []schedule.Schedule
	for _, s := range workerSchedules {
		all = append(all, s.of(n.version))
	}
	const soon = 300 * time.Millisecond
	for {
		s := schedule.New(n.DB, jobs.NewClient(n.DB), all...).WithLogger(slog.New(slog.DiscardHandler))
		if s.Start(ctx) == nil || !backoff.Sleep(ctx, soon) {
			return
		}
	}
}

const (
	ticksDisturbed   history.Fault = "workers disturbed as they moved a schedule on"
	schedulesPaused  history.Fault = "schedules paused for a moment by an operator"
	schedulesRemoved history.Fault = "schedules removed by an operator, though workers had them"
)

// scheduleFaults are about schedules. A restart lets a worker have other times.
var scheduleFaults = []faultRow{
	{Row: fault.New("tick", "cuts a worker off before or after the statement that moves a schedule on, or lets it hang after that",
		ticksDisturbed).Reaching(oracle.CutTicks),
		worker: append(at(counted(ticksDisturbed, (*slot).cut), beforeTick, afterTick), at(counted(ticksDisturbed, (*slot).stall), afterTick)...)},
	{Row: fault.New("halt", "pauses a schedule for a moment", schedulesPaused).Reaching(oracle.PausedSchedules), operator: (*operator).halt},
	{Row: fault.New("forget", "removes a schedule that workers have: they make it again", schedulesRemoved).Reaching(oracle.RemovedSchedules),
		operator: (*operator).forget},
}

// counted counts an injection as another fault, too.
func counted(as history.Fault, inject func(s *slot, ctx, intake context.Context, at point) error) func(s *slot, ctx, intake context.Context, at point) error {
	return func(s *slot, ctx, intake context.Context, at point) error {
		err := inject(s, ctx, intake, at)
		if err == nil && intake.Err() == nil {
			s.Tally.Add(as, 1)
		}
		return err
	}
}

// halt pauses a schedule for a moment.
func (o *operator) halt(ctx, intake context.Context) error {
	name := fault.OneOf(o.dice, operated...).name
	if err := o.ops.PauseSchedule(ctx, name, stage.By); err != nil {
		return unlessGone(err)
	}
	o.did(schedulesPaused, "", name)
	backoff.Sleep(intake, fault.Between(o.dice, 100*time.Millisecond, 1500*time.Millisecond))
	return o.of.on.Steadily(ctx, func() error {
		return unlessGone(o.ops.ResumeSchedule(ctx, name, stage.By))
	})
}

// forget removes a schedule.
func (o *operator) forget(ctx, _ context.Context) error {
	name := fault.OneOf(o.dice, operated...).name
	err := o.ops.RemoveSchedule(ctx, name, stage.By)
	if err == nil {
		o.did(schedulesRemoved, "", name)
	}
	return unlessGone(err)
}

// unlessGone returns err, or nil if another operator or a crash may have forestalled the operator.
func unlessGone(err error) error {
	if errors.Is(err, ops.ErrNotFound) || errors.Is(err, ops.ErrUnchanged) {
		return nil
	}
	return err
}

// haltAll pauses all schedules for good, so that everything can come to rest.
func (s *shared) haltAll(ctx context.Context) error {
	o, err := ops.NewJobs(s.on.DB)
	if err != nil {
		return err
	}
	for _, one := range workerSchedules {
		for until := time.Now().Add(s.on.Bounds.Of(server.WaitBound)); ; {
			err := s.on.Steadily(ctx, func() error { return o.PauseSchedule(ctx, one.name, stage.By) })
			if err == nil || errors.Is(err, ops.ErrUnchanged) {
				break
			}
			if !errors.Is(err, ops.ErrNotFound) || time.Now().After(until) || !backoff.Sleep(ctx, 20*time.Millisecond) {
				return err
			}
		}
	}
	return nil
}

// scheduleTables are where the database records what becomes of schedules: every
// change of a row, each job of a tick, and how often two fought for one.
const scheduleTables = `
CREATE TABLE sim_schedules (seq BIGSERIAL PRIMARY KEY, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), tx TEXT NOT NULL DEFAULT pg_current_xact_id()::text,
	who TEXT NOT NULL DEFAULT current_setting('application_name'), schedule TEXT NOT NULL,
	was_hash TEXT NOT NULL, hash TEXT NOT NULL, was TIMESTAMPTZ, next TIMESTAMPTZ, was_paused BOOLEAN NOT NULL, paused BOOLEAN NOT NULL, resumed TIMESTAMPTZ);
CREATE TABLE sim_ticks (job BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), tx TEXT NOT NULL DEFAULT pg_current_xact_id()::text,
	schedule TEXT NOT NULL, tick TIMESTAMPTZ NOT NULL, kind TEXT NOT NULL, queue TEXT NOT NULL, token TEXT NOT NULL);
CREATE SEQUENCE sim_fought;

CREATE FUNCTION sim_schedule() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO sim_schedules (schedule, was_hash, hash, was, next, was_paused, paused, resumed) VALUES (
		CASE TG_OP WHEN 'DELETE' THEN OLD.name ELSE NEW.name END,
		CASE TG_OP WHEN 'INSERT' THEN '' ELSE OLD.hash END, CASE TG_OP WHEN 'DELETE' THEN '' ELSE NEW.hash END,
		CASE TG_OP WHEN 'INSERT' THEN NULL ELSE OLD.next_at END, CASE TG_OP WHEN 'DELETE' THEN NULL ELSE NEW.next_at END,
		TG_OP <> 'INSERT' AND OLD.paused_at IS NOT NULL, TG_OP <> 'DELETE' AND NEW.paused_at IS NOT NULL,
		CASE TG_OP WHEN 'DELETE' THEN NULL ELSE NEW.resumed_at END);
	RETURN NULL;
END $$;
CREATE TRIGGER sim_schedule AFTER INSERT OR UPDATE OR DELETE ON jobs_schedules FOR EACH ROW EXECUTE FUNCTION sim_schedule();

-- What a job that is enqueued again has of the first one, makes it no tick.
CREATE FUNCTION sim_tick() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO sim_ticks (job, schedule, tick, kind, queue, token)
	VALUES (NEW.id, NEW.meta->>'schedule', (NEW.meta->>'tick')::timestamptz, NEW.kind, NEW.queue, NEW.args->>'token');
	RETURN NULL;
END $$;
CREATE TRIGGER sim_tick AFTER INSERT ON jobs FOR EACH ROW WHEN (NEW.meta ? 'schedule' AND current_setting('application_name') <> 'sim harness') EXECUTE FUNCTION sim_tick();

-- Who comes second moves nothing on. His transaction is rolled back; what he drew of a
-- sequence is not.
CREATE FUNCTION sim_fight() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF NOT EXISTS (SELECT FROM after) AND ltrim(current_query(), E'\n ') LIKE 'UPDATE%' THEN
		PERFORM nextval('sim_fought');
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER sim_fight AFTER UPDATE ON jobs_schedules REFERENCING NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION sim_fight()`

// collectSchedules reads what became of schedules, and adds each job of a tick to the enqueued
// jobs.
func (d *database) collectSchedules(ctx context.Context, j *history.Jobs, zero time.Time) (err error) {
	for _, s := range workerSchedules {
		one := history.Schedule{Name: s.name, CatchUp: s.catchUp}
		for _, p := range s.periods {
			one.Periods = append(one.Periods, p.Microseconds())
		}
		j.Schedules = append(j.Schedules, one)
	}
	micros := func(expression string) string { return `(extract(epoch FROM ` + expression + `) * 1000000)::bigint` }
	j.Changes, err = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.ScheduleChange) error {
		return r.Scan(&v.At, &v.Tx, &v.Who, &v.Schedule, &v.WasHash, &v.Hash, &v.Was, &v.Next, &v.WasPaused, &v.Paused, &v.Resumed)
	}, `SELECT `+micros("at")+`, tx, who, schedule, was_hash, hash, coalesce(`+micros("was")+`, 0), coalesce(`+micros("next")+`, 0), was_paused, paused, coalesce(`+micros("resumed")+`, 0) FROM sim_schedules ORDER BY seq`)
	if err != nil {
		return err
	}
	j.Ticks, err = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.Tick) error {
		return r.Scan(&v.At, &v.Tx, &v.Schedule, &v.Tick, &v.ID, &v.Kind, &v.Queue, &v.Token)
	}, `SELECT `+micros("at")+`, tx, schedule, `+micros("tick")+`, job, kind, queue, token FROM sim_ticks ORDER BY at, tick`)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, t := range j.Ticks {
		known[t.Token] = true
		// The time of its commit is not known: it has no ID, like the jobs that events ask for.
		j.Enqueued = append(j.Enqueued, history.Enqueued{
			Token: t.Token, Who: "schedule " + t.Schedule, Kind: t.Kind, Queue: t.Queue, Outcome: history.EnqueueCommitted, At: time.UnixMicro(t.At).Sub(zero).Seconds(),
		})
	}
	for _, r := range j.Runs {
		// A crash may have taken a tick back, and the next one may not be caught up.
		if j.Forgetful && strings.HasPrefix(r.Token, tickToken) && !known[r.Token] {
			known[r.Token] = true
			j.Enqueued = append(j.Enqueued, history.Enqueued{Token: r.Token, Who: "a schedule", Outcome: history.EnqueueUnsure})
		}
	}
	return d.Query(ctx, func() error {
		return d.DB.QueryRowContext(ctx, `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM sim_fought`).Scan(&j.Fought)
	})
}

// overdue counts the schedules whose next tick nobody comes to, or that are not there.
func (d *database) overdue(ctx context.Context) (n int64, err error) {
	err = d.Query(ctx, func() error {
		return d.DB.QueryRowContext(ctx, `SELECT $1::bigint - count(*) FROM jobs_schedules WHERE next_at > clock_timestamp() - interval '2 seconds'`, len(workerSchedules)).Scan(&n)
	})
	return n, err
}
