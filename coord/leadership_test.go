package coord

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A leader whose session is gone cannot write, although it still believes that it leads.
func TestLeaderWithoutItsLockCannotWrite(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, config(d.DB, six...)), join(t, config(d.DB, six...))
	lead(t, a)
	if mustPoll(t, b).leads {
		t.Fatal("both lead")
	}
	if leads, _, err := b.assign(t.Context(), next{changes: give("x", b)}); leads || err != nil {
		t.Fatalf("a follower wrote: %v, %v", leads, err)
	}
	mustExec(t, d.DB, `SELECT pg_terminate_backend($1::int)`, a.Backend)
	lead(t, b)
	if !a.leads {
		t.Fatal("the test needs two workers that believe that they lead")
	}
	if leads, _, err := b.assign(t.Context(), next{changes: give("x", b)}); !leads || err != nil {
		t.Fatalf("the leader cannot write: %v, %v", leads, err)
	}
	if leads, _, err := a.assign(t.Context(), next{changes: give("x", a)}); leads || err == nil {
		t.Errorf("the former leader wrote: %v, %v", leads, err)
	}
	if got := ownerOf(t, d.DB, "x"); got != b.cfg.ID.String() {
		t.Error("the former leader's assignment stands")
	}
}

// The leader's connection ends while its write waits for a row. The write does not take
// effect, and the successor's write does.
func TestLeaderDisconnectedDuringAWrite(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, config(d.DB, six...)), join(t, config(d.DB, six...))
	lead(t, a)
	release := lockRow(t, d.DB, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('x', gen_random_uuid())`)
	late := assignLater(a, append(give("w", a), give("x", a)...))
	blocked(t, d.DB, 1)
	if mustPoll(t, b).leads {
		t.Fatal("a follower leads while the leader writes")
	}
	mustExec(t, d.DB, `SELECT pg_terminate_backend($1::int)`, a.Backend)
	if w := <-late; w.leads || w.err == nil {
		t.Fatalf("the write of a disconnected leader: %+v", w)
	}
	lead(t, b)
	second := assignLater(b, give("x", b))
	blocked(t, d.DB, 1)
	release()
	if w := <-second; !w.leads || w.err != nil {
		t.Fatalf("the new leader's write: %+v", w)
	}
	if got := ownerOf(t, d.DB, "x"); got != b.cfg.ID.String() {
		t.Error("x does not belong to the new leader")
	}
	if n := scan[int](t, d.DB, `SELECT count(*) FROM consumer_assignments`); n != 1 {
		t.Errorf("there are %d rows, also from the former leader's write", n)
	}
}

// expire makes the lease expire.
func expire(t *testing.T, db *sql.DB) {
	t.Helper()
	mustExec(t, db, `UPDATE worker_leader_election SET expires_at = clock_timestamp()`)
}

func TestLeaderWithoutItsLeaseCannotWrite(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, withLease(config(d.DB, six...), true)), join(t, withLease(config(d.DB, six...), true))
	lead(t, a)
	if mustPoll(t, b).leads {
		t.Fatal("both lead")
	}
	if leads, _, err := b.assign(t.Context(), next{changes: give("x", b)}); leads || err != nil {
		t.Fatalf("a follower wrote: %v, %v", leads, err)
	}
	expire(t, d.DB)
	if leads, _, err := a.assign(t.Context(), next{changes: give("x", a)}); leads || err != nil {
		t.Fatalf("a leader with an expired lease wrote: %v, %v", leads, err)
	}
	lead(t, b)
	if b.lease.term != a.lease.term+1 {
		t.Errorf("the term went from %d to %d", a.lease.term, b.lease.term)
	}
	if !a.leads {
		t.Fatal("the test needs two workers that believe that they lead")
	}
	if leads, _, err := a.assign(t.Context(), next{changes: give("x", a)}); leads || err != nil {
		t.Fatalf("the former leader wrote: %v, %v", leads, err)
	}
	if leads, _, err := b.assign(t.Context(), next{changes: give("x", b)}); !leads || err != nil {
		t.Fatalf("the leader cannot write: %v, %v", leads, err)
	}
	if mustPoll(t, a).leads {
		t.Error("the former leader still leads")
	}
}

// A lease that expires while the write waits for its row proves nothing. The clock is read
// when the row is locked.
func TestLeaseExpiresDuringAWrite(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a := join(t, withLease(config(d.DB, six...), true))
	lead(t, a)
	tx, err := d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SELECT FROM worker_leader_election FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	late := assignLater(a, give("x", a))
	blocked(t, d.DB, 1)
	// Valid when the write began, expired when the write gets the row.
	if _, err := tx.Exec(`UPDATE worker_leader_election SET expires_at = clock_timestamp()`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if w := <-late; w.leads || w.err != nil {
		t.Errorf("the write: %+v", w)
	}
	if n := scan[int](t, d.DB, `SELECT count(*) FROM consumer_assignments`); n != 0 {
		t.Error("the row was written")
	}
}

// While a write runs, no worker can take the lease.
func TestLeaseIsKeptDuringAWrite(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, withLease(config(d.DB, six...), true)), join(t, withLease(config(d.DB, six...), true))
	lead(t, a)
	release := lockRow(t, d.DB, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('x', gen_random_uuid())`)
	first := assignLater(a, give("x", a))
	blocked(t, d.DB, 1)
	claimed := make(chan error, 1)
	go func() { claimed <- b.claim(context.Background()) }()
	blocked(t, d.DB, 2)
	release()
	if w := <-first; !w.leads || w.err != nil {
		t.Errorf("the write: %+v", w)
	}
	if err := <-claimed; err != nil || b.lease.holder == b.cfg.ID {
		t.Errorf("a valid lease was claimed: %v, %+v", err, b.lease)
	}
}

// A lease with an impossible expiry counts as expired.
func TestImpossibleLeaseIsExpired(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a, b := join(t, withLease(config(d.DB, six...), true)), join(t, withLease(config(d.DB, six...), true))
	for _, expires := range []string{"clock_timestamp() + interval '31 seconds'", "'infinity'", "'-infinity'", "NULL"} {
		lead(t, a)
		mustExec(t, d.DB, `UPDATE worker_leader_election SET expires_at = `+expires)
		if leads, _, err := a.assign(t.Context(), next{changes: give("x", a)}); leads || err != nil {
			t.Errorf("a leader with a lease until %s wrote: %v, %v", expires, leads, err)
		}
		lead(t, b)
		a, b = b, a
	}
}

// The holder renews the lease before it expires, and keeps its term.
func TestLeaseRenewal(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	a := join(t, withLease(brisk(config(d.DB, six...)), true))
	lead(t, a)
	first := scan[time.Time](t, d.DB, `SELECT expires_at FROM worker_leader_election`)
	await(t, "the lease was renewed", func() bool {
		if !mustPoll(t, a).leads {
			t.Fatal("the holder lost the lease")
		}
		return scan[time.Time](t, d.DB, `SELECT expires_at FROM worker_leader_election`).After(first)
	})
	if a.lease.term != 1 || a.lease.remaining(time.Now(), a.cfg.HeartbeatTimeout) == 0 {
		t.Errorf("after the renewal: %+v", a.lease)
	}
}

// A row that is already correct is not written again, since another leader may have written
// it.
func TestAssignWritesChangesOnly(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		a := join(t, withLease(config(d.DB, six...), leased))
		lead(t, a)
		history(t, d.DB)
		for range 3 {
			if leads, _, err := a.assign(t.Context(), next{changes: append(give("x", a), give("y", a)...)}); !leads || err != nil {
				t.Fatalf("assign: %v, %v", leads, err)
			}
		}
		if n := scan[int](t, d.DB, `SELECT count(*) FROM history`); n != 2 {
			t.Errorf("2 rows were written %d times", n)
		}
	})
}

// A leader and leaving workers write at the same time without a deadlock.
func TestNoDeadlock(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		units := make([]string, 30)
		for i := range units {
			units[i] = fmt.Sprintf("unit %02d", i)
		}
		leader := join(t, withLease(config(d.DB, units...), leased))
		lead(t, leader)
		leaver := []*session{join(t, withLease(config(d.DB, units...), leased)), join(t, withLease(config(d.DB, units...), leased))}
		const rounds = 150
		var wg sync.WaitGroup
		for _, l := range leaver {
			wg.Go(func() {
				for range rounds {
					if err := l.leave(context.Background(), false); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range rounds {
			var changes []change
			for _, i := range rand.Perm(len(units)) {
				changes = append(changes, change{Unit: units[i], Worker: leaver[rand.IntN(2)].cfg.ID})
			}
			if leads, _, err := leader.assign(t.Context(), next{changes: changes}); !leads || err != nil {
				t.Errorf("assign: %v, %v", leads, err)
				break
			}
		}
		wg.Wait()
	})
}
