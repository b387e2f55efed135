package schedule_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type tickJob struct{ Tick time.Time }

func (tickJob) Kind() string { return "tick" }

func jobOf(tick time.Time) jobs.Args { return tickJob{tick} }

// each ticks at every multiple of a period, which may be short.
type each time.Duration

func (e each) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(e)).Add(time.Duration(e))
}

func database(t *testing.T) *pgtest.Database {
	t.Helper()
	return pgtest.Jobs(t)
}

// run runs a scheduler until the test ends, or until stop is called.
func run(t *testing.T, db *sql.DB, schedules ...schedule.Schedule) (s *schedule.Scheduler, stop func()) {
	t.Helper()
	s = schedule.New(db, jobs.NewClient(db), schedules...).WithLogger(slog.New(slog.DiscardHandler))
	return s, start(t, s)
}

func start(t *testing.T, s *schedule.Scheduler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	if !pgtest.Poll(f) {
		t.Fatalf("waited in vain for %s", what)
	}
}

func count(t *testing.T, d *pgtest.Database, query string) (n int) {
	t.Helper()
	if err := d.DB.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Each tick is one job, whichever processes start and end, and whatever happens to their
// connections.
func TestEachTickOnce(t *testing.T) {
	t.Parallel()
	const (
		processes = 5
		ticks     = 100
		period    = 40 * time.Millisecond
	)
	cut := regexp.MustCompile(`57P01|bad connection|unexpected EOF`)
	d := database(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ { // the lives get longer, for a machine on which a start takes long
				life, end := context.WithTimeout(ctx, time.Duration(100+rand.IntN(700+50*n))*time.Millisecond)
				s := schedule.New(d.DB, jobs.NewClient(d.DB), schedule.Job("s", each(period), jobOf, schedule.CatchUp(1_000))).WithLogger(slog.New(slog.DiscardHandler))
				due, _ := life.Deadline() // a process may end while it connects
				if err := s.Start(life); err != nil && ctx.Err() == nil && time.Now().Before(due) && !cut.MatchString(err.Error()) {
					t.Errorf("Start: %v", err)
				}
				end()
			}
		})
	}
	until(t, "the ticks", func() bool {
		_, _ = d.DB.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.05`)
		var n int
		return d.DB.QueryRowContext(ctx, `SELECT count(*) FROM jobs`).Scan(&n) == nil && n >= ticks
	})
	cancel()
	wg.Wait()
	wrong := count(t, d, fmt.Sprintf(`
SELECT count(*) FROM (SELECT tick, lead(tick) OVER (ORDER BY tick) - tick AS pause
	FROM (SELECT (args->>'Tick')::timestamptz AS tick FROM jobs) AS j) AS g
WHERE pause <> interval '%d microseconds'`, period.Microseconds()))
	if wrong > 0 {
		t.Errorf("%d pauses between ticks are not %v", wrong, period)
	}
	if n := count(t, d, `SELECT count(*) FROM jobs WHERE meta->>'schedule' <> 's' OR (meta->>'tick')::timestamptz <> (args->>'Tick')::timestamptz`); n > 0 {
		t.Errorf("the meta of %d jobs is wrong", n)
	}
}

// Processes that start at the same time contend for the rows of their schedules, also if the
// default isolation is stricter than read committed.
func TestSchedulersStartUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	d := database(t)
	var all []*schedule.Scheduler
	for range 8 {
		var schedules []schedule.Schedule
		for n := range 20 {
			schedules = append(schedules, schedule.Job(fmt.Sprint("s", n), schedule.Every(time.Hour), jobOf))
		}
		s, _ := run(t, d.OpenSet(t, "default_transaction_isolation", "repeatable read"), schedules...)
		all = append(all, s)
	}
	until(t, "all schedules to be placed", func() bool {
		for _, s := range all {
			for _, st := range s.Status() {
				if st.Next.IsZero() {
					return false
				}
			}
		}
		return true
	})
}

// Schedules work with each driver and each of its query modes.
func TestDrivers(t *testing.T) {
	t.Parallel()
	d := database(t)
	all := map[string]*sql.DB{"pq": d.OpenPQ(t)}
	for _, mode := range pgtest.Modes() {
		all[mode.String()] = d.OpenMode(t, mode)
	}
	some := func(t *testing.T, db *sql.DB) {
		s, _ := run(t, db, schedule.Job(t.Name(), each(20*time.Millisecond), jobOf))
		until(t, "some jobs", func() bool { return s.Status()[0].Jobs > 2 })
		if err := s.Status()[0].Err; err != nil {
			t.Error(err)
		}
	}
	for name, db := range all {
		t.Run(name, func(t *testing.T) { some(t, db) })
	}
	t.Run("PgBouncer", func(t *testing.T) { some(t, d.Bounced(t, nil).DB) })
}

// The latest of the missed ticks are enqueued.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		missed  string // missed before the latest tick
		minutes string // minutes since the latest tick
		opts    []schedule.Option
		want    int
	}{
		"an outage":           {"100 hours", "5 minutes", nil, 1},
		"three of an outage":  {"100 hours", "5 minutes", []schedule.Option{schedule.CatchUp(3)}, 3},
		"all of an outage":    {"4 hours", "5 minutes", []schedule.Option{schedule.CatchUp(100)}, 5},
		"none of an outage":   {"1 hour", "5 minutes", []schedule.Option{schedule.CatchUp(0)}, 0},
		"a moment, no outage": {"0 hours", "0 minutes", []schedule.Option{schedule.CatchUp(0)}, 1},
		"a hundred years":     {"876000 hours", "5 minutes", []schedule.Option{schedule.CatchUp(2)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := database(t)
			// The schedule ticks each hour. The latest missed tick is now, or minutes ago.
			var latest time.Time
			if err := d.DB.QueryRow(`SELECT clock_timestamp() - $1::interval`, c.minutes).Scan(&latest); err != nil {
				t.Fatal(err)
			}
			one := schedule.Job("s", phase{latest}, jobOf, c.opts...)
			_, stop := run(t, d.DB, one)
			until(t, "the row", func() bool { return count(t, d, `SELECT count(*) FROM jobs_schedules`) == 1 })
			stop()
			d.Exec(t, `DELETE FROM jobs`)
			d.Exec(t, `UPDATE jobs_schedules SET next_at = $1::timestamptz - $2::interval`, latest, c.missed)
			_, stop = run(t, d.DB, one)
			until(t, "the ticks to pass", func() bool {
				return count(t, d, `SELECT count(*) FROM jobs_schedules WHERE next_at > clock_timestamp()`) == 1
			})
			stop()
			if n := count(t, d, `SELECT count(*) FROM jobs`); n != c.want {
				t.Errorf("%d jobs, want %d", n, c.want)
			}
		})
	}
}

// phase ticks each hour, with one tick at a given time.
type phase struct{ one time.Time }

func (p phase) Next(t time.Time) time.Time {
	since := t.Sub(p.one)
	whole := since.Truncate(time.Hour)
	if whole > since {
		whole -= time.Hour
	}
	return p.one.Add(whole + time.Hour)
}

// A process with other times takes over the schedule. The other process stops enqueueing, and
// reports this once.
func TestProgramWithOtherTimesTakesOver(t *testing.T) {
	t.Parallel()
	d := database(t)
	var said pgtest.Lines
	old := schedule.New(d.DB, jobs.NewClient(d.DB), schedule.Job("s", each(20*time.Millisecond), jobOf)).WithLogger(slog.New(slog.NewTextHandler(&said, nil)))
	start(t, old)
	until(t, "the first jobs", func() bool { return old.Status()[0].Jobs > 2 })
	current, _ := run(t, d.DB, schedule.Job("s", each(30*time.Millisecond), jobOf))
	until(t, "the old one to stand back", func() bool { return old.Status()[0].Foreign })
	had := old.Status()[0].Jobs
	until(t, "the new one's jobs", func() bool { return current.Status()[0].Jobs > 5 })
	if n := old.Status()[0].Jobs; n > had {
		t.Errorf("the old one has enqueued %d jobs since", n-had)
	}
	if n := strings.Count(said.String(), "has given a schedule other times"); n != 1 {
		t.Errorf("the old one said so %d times:\n%s", n, &said)
	}
}

// later ticks each hour until a moment, and then each 20 milliseconds. It has no String.
type later time.Time

func (l later) Next(t time.Time) time.Time {
	at := each(time.Hour).Next(t)
	if from := time.Time(l); at.After(from) {
		at = each(20 * time.Millisecond).Next(t)
		if !at.After(from) {
			at = from.Add(20 * time.Millisecond)
		}
	}
	return at
}

// Times that differ only in the future are different times, by the next tick.
func TestTimesThatDifferOnlyInTheNextTick(t *testing.T) {
	t.Parallel()
	d := database(t)
	_, stop := run(t, d.DB, schedule.Job("s", each(time.Hour), jobOf))
	until(t, "the row", func() bool { return count(t, d, `SELECT count(*) FROM jobs_schedules`) == 1 })
	stop()
	s, _ := run(t, d.DB, schedule.Job("s", later(time.Now().Add(-2*time.Hour).Truncate(time.Hour)), jobOf))
	until(t, "the jobs of the new times", func() bool { return s.Status()[0].Jobs > 2 })
}

// A program with other times reads the clock after it has locked the row. So it does not enqueue
// again what the earlier program has enqueued until then.
func TestOtherTimesBeginAfterTheEarlierOnes(t *testing.T) {
	t.Parallel()
	d := database(t)
	_, stop := run(t, d.DB, schedule.Job("s", schedule.Every(time.Hour), jobOf))
	until(t, "the row", func() bool { return count(t, d, `SELECT count(*) FROM jobs_schedules`) == 1 })
	stop()
	held, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback() }() // a no-op after the commit
	if _, err := held.Exec(`SELECT FROM jobs_schedules FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	s := schedule.New(d.DB, jobs.NewClient(d.DB), schedule.Job("s", each(20*time.Millisecond), jobOf, schedule.CatchUp(1_000)))
	start(t, s)
	pgtest.AwaitBlocked(t, d.DB)
	var since, freed time.Time
	now := func(at *time.Time) {
		if err := d.DB.QueryRow(`SELECT clock_timestamp()`).Scan(at); err != nil {
			t.Fatal(err)
		}
	}
	now(&since)
	until(t, "five ticks to pass", func() bool { now(&freed); return freed.Sub(since) > 100*time.Millisecond })
	if err := held.Commit(); err != nil {
		t.Fatal(err)
	}
	until(t, "the first jobs", func() bool { return s.Status()[0].Jobs > 2 })
	if n := count(t, d, fmt.Sprintf(`SELECT count(*) FROM jobs WHERE (args->>'Tick')::timestamptz <= '%s'`, freed.Format(time.RFC3339Nano))); n > 0 {
		t.Errorf("%d ticks are of the time before it had the row", n)
	}
}

// A process that hangs while it holds the row of a schedule delays no other schedule.
func TestScheduleThatHangsDelaysNoOther(t *testing.T) {
	t.Parallel()
	d := database(t)
	s, _ := run(t, d.DB, schedule.Job("held", each(20*time.Millisecond), jobOf), schedule.Job("fine", each(20*time.Millisecond), jobOf))
	until(t, "the first jobs of both", func() bool { return s.Status()[0].Jobs > 1 && s.Status()[1].Jobs > 1 })
	held, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback() }() // or the server has ended it
	if _, err := held.Exec(`SELECT FROM jobs_schedules WHERE name = 'held' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	had := s.Status()
	until(t, "the jobs of the other", func() bool { return s.Status()[1].Jobs > had[1].Jobs+10 })
	if n := s.Status()[0].Jobs; n > had[0].Jobs+1 { // a tick may have been under way
		t.Errorf("%d jobs of the one that is held", n-had[0].Jobs)
	}
	if err := s.Status()[0].Err; err != nil {
		t.Errorf("another process is at it, which is no error: %v", err)
	}
}

// All times are by the database's clock, however far off the process's clock is.
func TestClockOfTheProcessIsOff(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]string{"an hour behind": "1 hour", "an hour ahead": "-1 hour"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := database(t)
			// The database's clock is moved, which has the same effect.
			d.Exec(t, `CREATE SCHEMA off`)
			d.Exec(t, `CREATE FUNCTION off.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + interval '`+off+`' $$`)
			d.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = off, pg_catalog, public', current_database()); END $$`)
			s, stop := run(t, d.OpenMode(t, pgx.QueryExecModeCacheStatement), schedule.Job("s", each(20*time.Millisecond), jobOf, schedule.CatchUp(1_000)))
			until(t, "ten jobs", func() bool { return s.Status()[0].Jobs >= 10 })
			stop()
			if n := count(t, d, `SELECT count(*) FROM jobs WHERE (args->>'Tick')::timestamptz - interval '`+off+`' NOT BETWEEN created_at - interval '1 minute' AND created_at + interval '1 minute'`); n > 0 {
				t.Errorf("%d ticks are not of the database's clock", n)
			}
		})
	}
}

// A paused schedule enqueues nothing, neither then nor later.
func TestPaused(t *testing.T) {
	t.Parallel()
	d := database(t)
	s, _ := run(t, d.DB, schedule.Job("s", each(20*time.Millisecond), jobOf, schedule.CatchUp(1_000)))
	until(t, "the first jobs", func() bool { return s.Status()[0].Jobs > 2 })
	o, err := ops.NewJobs(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	by := ops.By{Operator: "ann", Reason: "a test"}
	if err := o.PauseSchedule(t.Context(), "s", by); err != nil {
		t.Fatal(err)
	}
	had := count(t, d, `SELECT count(*) FROM jobs`)
	until(t, "ten ticks to pass", func() bool {
		return count(t, d, `SELECT count(*) FROM jobs_schedules WHERE next_at > paused_at + interval '200 ms'`) == 1
	})
	if n := count(t, d, `SELECT count(*) FROM jobs`); n != had {
		t.Errorf("%d jobs were enqueued in the pause", n-had)
	}
	if err := o.ResumeSchedule(t.Context(), "s", by); err != nil {
		t.Fatal(err)
	}
	until(t, "more jobs", func() bool { return count(t, d, `SELECT count(*) FROM jobs`) > had })
}

// Ticks during a pause are not enqueued after it, even if no process ran in the pause.
func TestPausedWhileNoProcessRuns(t *testing.T) {
	t.Parallel()
	d := database(t)
	one := schedule.Job("s", each(20*time.Millisecond), jobOf, schedule.CatchUp(1_000))
	_, stop := run(t, d.DB, one)
	until(t, "the first jobs", func() bool { return count(t, d, `SELECT count(*) FROM jobs`) > 2 })
	stop()
	o, err := ops.NewJobs(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	by := ops.By{Operator: "ann", Reason: "a test"}
	if err := o.PauseSchedule(t.Context(), "s", by); err != nil {
		t.Fatal(err)
	}
	until(t, "ten ticks to pass", func() bool {
		return count(t, d, `SELECT count(*) FROM jobs_schedules WHERE clock_timestamp() > paused_at + interval '200 ms'`) == 1
	})
	d.Exec(t, `CREATE TABLE resumed AS SELECT clock_timestamp() AS before`)
	if err := o.ResumeSchedule(t.Context(), "s", by); err != nil {
		t.Fatal(err)
	}
	had := count(t, d, `SELECT count(*) FROM jobs`)
	s, _ := run(t, d.DB, one)
	until(t, "the jobs after the pause", func() bool { return s.Status()[0].Jobs > 2 })
	if n := count(t, d, `SELECT count(*) FROM (SELECT args FROM jobs ORDER BY id OFFSET `+fmt.Sprint(had)+`) AS j, resumed WHERE (args->>'Tick')::timestamptz < before`); n > 0 {
		t.Errorf("%d ticks are of the pause, or of the time before it", n)
	}
	if n := count(t, d, `SELECT count(*) FROM jobs WHERE extract(microseconds FROM (args->>'Tick')::timestamptz)::bigint % 20000 <> 0`); n > 0 {
		t.Errorf("%d jobs have the time of no tick", n)
	}
}

// A schedule whose job or time cannot be made delays no other schedule, and is reported. A row that
// is deleted comes back.
func TestScheduleThatFailsDelaysNoOther(t *testing.T) {
	t.Parallel()
	d := database(t)
	broken := func(time.Time) jobs.Args { panic("no job today") }
	stopped := &stops{}
	s, _ := run(t, d.DB,
		schedule.Job("broken", each(20*time.Millisecond), broken),
		schedule.Job("stopped", stopped, jobOf),
		schedule.Job("fine", each(20*time.Millisecond), jobOf))
	fine := func() int64 { return s.Status()[2].Jobs }
	until(t, "the jobs of the other", func() bool { return fine() > 2 })
	stopped.now.Store(true)
	until(t, "both to report the error", func() bool { return s.Status()[0].Err != nil && s.Status()[1].Err != nil })
	for i, want := range []string{"no job today", "no time today"} {
		if err := s.Status()[i].Err; !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "schedule_test.go:") {
			t.Errorf("%s says %v", s.Status()[i].Name, err)
		}
	}
	d.Exec(t, `DELETE FROM jobs_schedules WHERE name = 'fine'`)
	had := fine() + 1 // a tick may have been under way
	until(t, "the jobs of the other again", func() bool { return fine() > had+2 })
}

// stops is a Spec that panics from some moment on.
type stops struct{ now atomic.Bool }

func (s *stops) Next(t time.Time) time.Time {
	if s.now.Load() {
		panic("no time today")
	}
	return each(20 * time.Millisecond).Next(t)
}

// does is a function as a Spec.
type does func(time.Time) time.Time

func (f does) Next(t time.Time) time.Time { return f(t) }

// A Spec that starts to fail is reported, and enqueues nothing meanwhile.
func TestSpecThatStartsToFail(t *testing.T) {
	t.Parallel()
	for want, wrong := range map[string]does{
		"it must return a later time": func(at time.Time) time.Time { return at },
		"they must be 1ms apart":      func(at time.Time) time.Time { return at.Add(1) },
		"in the year 10":              func(at time.Time) time.Time { return at.AddDate(8_000, 0, 0) },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			d := database(t)
			var now atomic.Bool
			s, _ := run(t, d.DB, schedule.Job("s", does(func(at time.Time) time.Time {
				if now.Load() {
					return wrong(at)
				}
				return each(20 * time.Millisecond).Next(at)
			}), jobOf))
			until(t, "a job", func() bool { return s.Status()[0].Jobs > 0 })
			now.Store(true)
			until(t, "the schedule to report the error", func() bool { return s.Status()[0].Err != nil })
			if err := s.Status()[0].Err; !strings.Contains(err.Error(), want) {
				t.Errorf("it says %v", err)
			}
			now.Store(false)
			had := s.Status()[0].Jobs
			until(t, "jobs again", func() bool { return s.Status()[0].Jobs > had && s.Status()[0].Err == nil })
		})
	}
}

// With Unique a tick enqueues no job while the job of an earlier tick has not finished. The
// schedule continues.
func TestUniqueTicks(t *testing.T) {
	t.Parallel()
	d := database(t)
	s, _ := run(t, d.DB, schedule.Job("s", each(20*time.Millisecond), jobOf, schedule.Enqueue(jobs.Unique("s"))))
	until(t, "ten ticks to pass", func() bool {
		return count(t, d, `SELECT count(*) FROM jobs_schedules, jobs WHERE next_at > (args->>'Tick')::timestamptz + interval '200 ms'`) == 1
	})
	if n := s.Status()[0].Jobs; n != 1 {
		t.Errorf("%d jobs are reported", n)
	}
}

// Start returns the errors of New's arguments at once.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	client := jobs.NewClient(d.DB)
	panics := &stops{}
	panics.now.Store(true)
	for name, c := range map[string]struct {
		s    *schedule.Scheduler
		want string
	}{
		"no database":  {schedule.New(nil, client, schedule.Job("s", schedule.Every(time.Hour), jobOf)), "db is nil"},
		"no client":    {schedule.New(d.DB, nil, schedule.Job("s", schedule.Every(time.Hour), jobOf)), "client is nil"},
		"no schedules": {schedule.New(d.DB, client), "there are no schedules"},
		"no name":      {schedule.New(d.DB, client, schedule.Job("", schedule.Every(time.Hour), jobOf)), "the name takes"},
		"a NUL":        {schedule.New(d.DB, client, schedule.Job("a\x00", schedule.Every(time.Hour), jobOf)), "the name takes"},
		"no UTF-8":     {schedule.New(d.DB, client, schedule.Job("\xff", schedule.Every(time.Hour), jobOf)), "the name takes"},
		"no spec":      {schedule.New(d.DB, client, schedule.Job("s", nil, jobOf)), "the spec is nil"},
		"no job":       {schedule.New(d.DB, client, schedule.Job("s", schedule.Every(time.Hour), nil)), "job is nil"},
		"twice":        {schedule.New(d.DB, client, schedule.Job("s", schedule.Every(time.Hour), jobOf), schedule.Job("s", schedule.Every(time.Hour), jobOf)), "two schedules are called"},
		"too often":    {schedule.New(d.DB, client, schedule.Job("s", schedule.Every(time.Millisecond), jobOf)), "Every: 1ms is out of range"},
		"panics":       {schedule.New(d.DB, client, schedule.Job("s", panics, jobOf)), "no time today"},
		"no time":      {schedule.New(d.DB, client, schedule.Job("s", schedule.Daily(24, 0, nil), jobOf)), "Daily: 24:00 is no time"},
		"stands still": {schedule.New(d.DB, client, schedule.Job("s", does(func(at time.Time) time.Time { return at }), jobOf)), "it must return a later time"},
		"goes back":    {schedule.New(d.DB, client, schedule.Job("s", does(func(at time.Time) time.Time { return at.Add(-1) }), jobOf)), "it must return a later time"},
		"creeps":       {schedule.New(d.DB, client, schedule.Job("s", does(func(at time.Time) time.Time { return at.Add(1) }), jobOf)), "they must be 1ms apart"},
		"far future":   {schedule.New(d.DB, client, schedule.Job("s", does(func(at time.Time) time.Time { return at.AddDate(1_000_000, 0, 0) }), jobOf)), "in the year 1002024"},
		"catch up":     {schedule.New(d.DB, client, schedule.Job("s", schedule.Every(time.Hour), jobOf, schedule.CatchUp(-1))), "CatchUp: -1 is out of range"},
	} {
		if err := c.s.Start(t.Context()); !errors.Is(err, jobs.ErrInvalidConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := schedule.New(d.DB, client, schedule.Job("s", schedule.Every(time.Hour), jobOf)).Start(t.Context()); !errors.Is(err, migrations.ErrNotApplied) {
		t.Errorf("without tables: %v", err)
	}
}

// A schedule whose next tick was set to infinity does not tick. A schedule at -infinity is due.
// Neither delays the others.
func TestInfiniteTicks(t *testing.T) {
	t.Parallel()
	d := database(t)
	rarely := schedule.Every(1000 * time.Hour)
	_, stop := run(t, d.DB, schedule.Job("never", rarely, jobOf), schedule.Job("due", rarely, jobOf), schedule.Job("far", rarely, jobOf))
	until(t, "the rows", func() bool { return count(t, d, `SELECT count(*) FROM jobs_schedules WHERE next_at IS NOT NULL`) == 3 })
	stop()
	d.Exec(t, `UPDATE jobs_schedules SET next_at = CASE name WHEN 'never' THEN 'infinity'::timestamptz WHEN 'due' THEN '-infinity' ELSE next_at END,
		last_at = '-infinity', resumed_at = 'infinity'`)
	s, _ := run(t, d.DB, schedule.Job("never", rarely, jobOf), schedule.Job("due", rarely, jobOf), schedule.Job("far", rarely, jobOf))
	until(t, "the job that was due, and its next tick", func() bool {
		return s.Status()[1].Jobs == 1 && count(t, d, `SELECT count(*) FROM jobs_schedules WHERE name = 'due' AND next_at BETWEEN now() AND now() + interval '1000 hours'`) == 1
	})
	d.Exec(t, `UPDATE jobs_schedules SET next_at = '20000-01-01' WHERE name = 'far'`) // no server's clock has been there
	until(t, "the far tick to be replaced", func() bool {
		return count(t, d, `SELECT count(*) FROM jobs_schedules WHERE name = 'far' AND next_at BETWEEN now() AND now() + interval '1000 hours'`) == 1
	})
	if all := s.Status(); !all[0].Next.IsZero() || all[0].Jobs != 0 || all[2].Jobs != 0 {
		t.Errorf("the others are %+v", all)
	}
	if n := count(t, d, `SELECT count(*) FROM jobs WHERE (args->>'Tick')::timestamptz > now() - interval '1000 hours'`); n != 1 {
		t.Errorf("%d jobs are of the latest tick", n)
	}
}

// The database's clock was ahead and is corrected. A schedule continues from now, whatever future
// tick its row has, while it runs and when it starts.
func TestScheduleAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	d := database(t)
	ahead := func() {
		d.Exec(t, `UPDATE jobs_schedules SET next_at = next_at + interval '1 day', last_at = next_at + interval '1 day', resumed_at = next_at + interval '1 day'`)
		d.Exec(t, `DELETE FROM jobs`)
	}
	ticks := func() {
		t.Helper()
		until(t, "ticks of now", func() bool {
			return count(t, d, `SELECT count(*) FROM jobs WHERE (args->>'Tick')::timestamptz BETWEEN now() - interval '1 minute' AND now() + interval '1 minute'`) > 1
		})
	}
	_, stop := run(t, d.DB, schedule.Job("s", schedule.Every(time.Second), jobOf))
	ticks()
	stop()
	ahead()
	run(t, d.DB, schedule.Job("s", schedule.Every(time.Second), jobOf))
	ticks()
	ahead()
	ticks()
}

// Start returns ErrPoolClosed after the program has closed the pool.
func TestPoolClosedUnderTheScheduler(t *testing.T) {
	t.Parallel()
	d := database(t)
	db := d.OpenSet(t, "application_name", "closed")
	s := schedule.New(db, jobs.NewClient(db), schedule.Job("s", schedule.Every(time.Second), jobOf))
	ended := make(chan error, 1)
	go func() { ended <- s.Start(t.Context()) }()
	until(t, "a tick", func() bool { return s.Status()[0].Jobs > 0 })
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, schedule.ErrPoolClosed) {
			t.Errorf("Start returned %v", err)
		}
	case <-time.After(pgtest.Patience):
		t.Fatal("the Scheduler goes on without its pool")
	}
}

// A Scheduler that starts while the database is away waits, and logs this.
func TestStartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	d := database(t)
	db, back := d.OpenAway(t)
	var log pgtest.Lines
	scheduler := func() *schedule.Scheduler {
		return schedule.New(db, jobs.NewClient(db), schedule.Job("tick", each(time.Hour), jobOf)).WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	}
	if err := scheduler().WithStartLimit(-1).Start(t.Context()); !errors.Is(err, jobs.ErrInvalidConfig) {
		t.Errorf("with a limit below 0: %v", err)
	}
	if err := scheduler().WithStartLimit(10 * time.Millisecond).Start(t.Context()); err == nil || !strings.Contains(err.Error(), "gave up after 10ms: schedule: the database does not answer") {
		t.Errorf("with a limit: %v", err)
	}
	s := scheduler()
	start(t, s)
	until(t, "the log to report it", func() bool { return strings.Count(log.String(), "task failed") > 1 })
	back()
	until(t, "the schedule to have its row", func() bool { return !s.Status()[0].Next.IsZero() })
}
