package metrics

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

// How deep the queues are is read once in ten seconds, and at once of another database.
func TestDepthIsReadOnceInTenSeconds(t *testing.T) {
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	o, err := ops.NewJobs(d.DB, nil)
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
