package coord

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// Registration and heartbeats write the worker's status. A status that fails, or that the
// database rejects, stops neither.
func TestStatusIsWritten(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		said, failure := `{"n": 1}`, error(nil)
		log := &logged{}
		cfg := withLease(config(d.DB, six...), leased)
		log.record(&cfg)
		cfg.Status = func() ([]byte, error) { return []byte(said), failure }
		w := join(t, cfg)
		expect := func(when, want string) {
			t.Helper()
			if got := scan[string](t, d.DB, `SELECT coalesce(status::text, 'none') FROM worker_nodes`); got != want {
				t.Errorf("%s: the status is %s, not %s", when, got, want)
			}
			if age := scan[float64](t, d.DB, `SELECT extract(epoch FROM clock_timestamp() - heartbeat_at) FROM worker_nodes`); age > patience.Seconds() {
				t.Errorf("%s: the last heartbeat is %v seconds old", when, age)
			}
			mustExec(t, d.DB, `UPDATE worker_nodes SET heartbeat_at = clock_timestamp() - interval '1 hour'`)
		}
		expect("registered", `{"n": 1}`)
		said = `{"n": 2}`
		beat(t, w)
		expect("a heartbeat", `{"n": 2}`)
		said = `{"n": 3}`
		lead(t, w)
		beat(t, w)
		expect("a leader's heartbeat", `{"n": 3}`)
		if n := log.count("report status"); n != 0 {
			t.Errorf("%d lines report a missing status", n)
		}
		for _, bad := range []string{`{"n": `, `{"n": "\u0000"}`} {
			said = bad
			beat(t, w)
			expect(bad, `{"n": 3}`)
			if err := w.Register(t.Context()); err != nil {
				t.Errorf("register with the status %s: %v", bad, err)
			}
			mustExec(t, d.DB, `UPDATE worker_nodes SET status = '{"n": 3}'`)
		}
		said, failure = `{"n": 4}`, errors.New("no status today")
		beat(t, w)
		expect("an error", `{"n": 3}`)
		if n := log.count("report status"); n != 5 {
			t.Errorf("%d lines report a missing status, want 5", n)
		}
		// Without Status, the column stays empty.
		unreachable := config(d.DB, six...)
		mustExec(t, d.DB, `DELETE FROM worker_nodes`)
		beat(t, join(t, unreachable))
		expect("no status", "none")
	})
}

// A poll between two heartbeats writes nothing.
func TestPollWritesOnlyDueHeartbeats(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		w := join(t, withLease(config(d.DB, six...), leased))
		lead(t, w)
		at := func() string { return scan[string](t, d.DB, `SELECT xmin::text FROM worker_nodes`) }
		before := at()
		for range 3 {
			if v := mustPoll(t, w); !v.leads || !v.Registered {
				t.Fatalf("the poll returned %+v", v)
			}
		}
		if at() != before {
			t.Error("a poll wrote a heartbeat that was not due")
		}
		beat(t, w)
		if at() == before {
			t.Error("a poll did not write the heartbeat that was due")
		}
	})
}

// A worker registers the version of its build.
func TestBuildIsRegistered(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	join(t, config(d.DB, six...))
	if got := scan[string](t, d.DB, `SELECT build FROM worker_nodes`); !strings.HasPrefix(got, "github.com/pgfrontier/worker@") {
		t.Errorf("the build is %q", got)
	}
}

// The leader removes the rows of workers that have been silent for twice their
// HeartbeatTimeout, even if no worker registers.
func TestLeaderRemovesDeadWorkers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	start(t, quick(config(d.DB, six...))).awaitAssigned(six...)
	mustExec(t, d.DB, `INSERT INTO worker_nodes (worker_id, heartbeat_at, heartbeat_timeout)
		SELECT gen_random_uuid(), now() - age, '1 hour' FROM (VALUES (interval '3 hours'), ('90 minutes')) AS dead(age)`)
	await(t, "the row of the dead worker to be removed", func() bool { return scan[int](t, d.DB, `SELECT count(*) FROM worker_nodes`) == 2 })
	if got := scan[int](t, d.DB, `SELECT count(*) FROM worker_nodes WHERE heartbeat_at < now() - interval '80 minutes' AND heartbeat_at > now() - interval '100 minutes'`); got != 1 {
		t.Error("the leader removed a row of a worker that was not silent for twice its timeout")
	}
}

// announced returns the number of announcements.
func announced(t *testing.T, d *pgtest.Database) int {
	t.Helper()
	return scan[int](t, d.DB, `SELECT `+changes.Count(config(nil).Changes))
}

// A join, a leave and a rebalance are announced. An idle group announces nothing.
func TestAnnouncements(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		expect := func(when string, want int) {
			t.Helper()
			await(t, when, func() bool { return announced(t, d) >= want })
			if got := announced(t, d); got != want {
				t.Errorf("%s: %d announcements, want %d", when, got, want)
			}
		}
		a := start(t, withLease(brisk(config(d.DB, six...)), leased))
		a.awaitAssigned(six...)
		expect("registered, dealt out", 2)
		b := start(t, withLease(brisk(config(d.DB, six...)), leased))
		awaitShares(a, b)
		expect("registered, dealt out again", 4)
		for range 10 {
			before := a.Status().LastHeartbeat
			await(t, "another heartbeat", func() bool { return a.Status().LastHeartbeat.After(before) })
		}
		expect("nothing happened", 4)
		b.leave()
		a.awaitAssigned(six...)
		expect("left, dealt out again", 6)
		mustExec(t, d.DB, `DELETE FROM worker_nodes`)
		expect("registered anew", 7)
	})
}

// Without the counter everything works, only slower.
func TestAnnouncementFails(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	mustExec(t, d.DB, `DROP TABLE consumer_checkpoints_changes`)
	log := &logged{}
	cfg := brisk(config(d.DB, six...))
	log.record(&cfg)
	a := start(t, cfg)
	a.awaitAssigned(six...)
	b := start(t, brisk(config(d.DB, six...)))
	awaitShares(a, b)
	b.leave()
	a.awaitAssigned(six...)
	if log.count("announce a change") == 0 {
		t.Error("the failed announcement was not reported")
	}
}

// A woken leader polls at once and reads the assignments.
func TestWakePollsAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := config(d.DB, six...)
	cfg.HeartbeatInterval, cfg.HeartbeatTimeout, cfg.RebalanceInterval = 50*patience, 100*patience, 50*patience
	idle := New(cfg)
	idle.Wake()
	idle.Wake() // does not block, although nobody polls
	a := start(t, cfg)
	a.awaitAssigned(six...)
	mustExec(t, d.DB, `DELETE FROM consumer_assignments WHERE consumer_name = 'Email'`)
	a.Wake()
	await(t, "the leader puts right what was changed", func() bool {
		return scan[int](t, d.DB, `SELECT count(*) FROM consumer_assignments`) == 6
	})
}

// A leader that was delayed finds itself alive, since its heartbeat is part of the same poll.
func TestDelayedLeaderIsAlive(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		w := join(t, withLease(config(d.DB, six...), leased))
		lead(t, w)
		mustExec(t, d.DB, `UPDATE worker_nodes SET heartbeat_at = clock_timestamp() - interval '1 hour'`)
		w.Beaten = time.Time{}
		if !see(t, w, w.cfg.ID).Fresh {
			t.Error("the leader counts itself as dead")
		}
	})
}
