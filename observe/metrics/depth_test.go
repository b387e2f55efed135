package metrics

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

// How deep the queues are is read once in ten seconds, and at once of another database.
func TestDepthIsReadOnceInTenSeconds(t *testing.T) {
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	o, err := ops.NewJobs(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	var look depth
	expect := func(when string, want float64) {
		t.Helper()
		var due float64
		look.sample(t.Context(), func(m *Metric, value float64, _ ...string) {
			if m == jobsDue {
				due += value
			}
		})
		if due != want {
			t.Errorf("%s: %v jobs are due, want %v", when, due, want)
		}
	}
	for _, c := range []struct {
		when string
		then func() // the time passes, or something else happens
		want float64
	}{
		{"first", func() { look.of(o) }, 1},
		{"soon", func() { look.read = look.read.Add(time.Hour) }, 1}, // however slow this machine is
		{"later", func() { look.read = time.Now().Add(-10 * time.Second) }, 3},
		{"of another one", func() { look.of(o) }, 4},
	} {
		d.Exec(t, `INSERT INTO jobs (kind, queue) VALUES ('k', 'q')`)
		c.then()
		expect(c.when, c.want)
	}
}

// A role that may not read the schedules has the rest, and asks for them once.
func TestSchedulesThatMayNotBeRead(t *testing.T) {
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	role := "blind_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, `CREATE ROLE `+role+`; GRANT SELECT ON jobs, jobs_history, jobs_queues TO `+role)
	t.Cleanup(func() { d.Exec(t, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	d.Exec(t, `INSERT INTO jobs (kind, queue) VALUES ('k', 'q'); INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('s', 'h', now())`)
	d.DB.SetMaxOpenConns(1)
	d.Exec(t, `SET ROLE `+role)
	t.Cleanup(func() { d.Exec(t, `RESET ROLE`) })
	o, err := ops.NewJobs(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	var look depth
	look.of(o)
	for range 2 {
		got := map[*Metric]float64{}
		look.sample(t.Context(), func(m *Metric, value float64, _ ...string) { got[m] = value })
		delete(got, jobsReadAge)
		if delete(got, jobsOldest); !maps.Equal(got, map[*Metric]float64{jobsReadUp: 1, jobsDue: 1, jobsScheduled: 0, jobsUnadvanced: 0}) || !look.blind {
			t.Errorf("got %v, want all but the schedules", got)
		}
		look.read = time.Now().Add(-10 * time.Second)
		d.Exec(t, `RESET ROLE; GRANT SELECT ON jobs_schedules TO `+role+`; SET ROLE `+role)
	}
	look.of(o)
	schedules := 0
	look.sample(t.Context(), func(m *Metric, _ float64, _ ...string) {
		if m == jobsOverdue {
			schedules++
		}
	})
	if schedules != 1 {
		t.Errorf("%d schedules after the grant and another WatchJobs", schedules)
	}
}

// While the database fails, the depth keeps its last values, and is read no sooner.
func TestDepthThatCannotBeRead(t *testing.T) {
	d, gone := pgtest.New(t), pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `INSERT INTO jobs (kind, queue) VALUES ('k', 'q')`)
	var o [2]*ops.Jobs
	for i, db := range []*pgtest.Database{gone, d} {
		var err error
		if o[i], err = ops.NewJobs(db.DB); err != nil {
			t.Fatal(err)
		}
	}
	if err := gone.DB.Close(); err != nil {
		t.Fatal(err)
	}
	var look depth
	expect := func(when string, want map[*Metric]float64) {
		t.Helper()
		got := map[*Metric]float64{}
		look.sample(t.Context(), func(m *Metric, value float64, _ ...string) { got[m] = value })
		if age, found := got[jobsReadAge]; found && age < want[jobsReadAge] {
			t.Errorf("%s: the age is %v, want %v", when, age, want[jobsReadAge])
		} else if found {
			got[jobsReadAge] = want[jobsReadAge]
		}
		delete(got, jobsOldest)
		delete(got, jobsUnadvanced)
		if !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	look.of(o[0])
	expect("the pool is closed", map[*Metric]float64{jobsReadUp: 0})
	look.jobs = o[1]
	look.read = look.read.Add(time.Hour) // however slow this machine is
	expect("soon", map[*Metric]float64{jobsReadUp: 0})
	look.read = time.Now().Add(-10 * time.Second)
	expect("later", map[*Metric]float64{jobsReadUp: 1, jobsReadAge: 0, jobsDue: 1, jobsScheduled: 0})
	look.jobs = o[0]
	look.read, look.found.at = look.read.Add(-10*time.Second), look.found.at.Add(-10*time.Second)
	expect("the pool is closed again", map[*Metric]float64{jobsReadUp: 0, jobsReadAge: 10, jobsDue: 1, jobsScheduled: 0})
}
