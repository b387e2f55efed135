package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/legacy"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store/consumer"
)

// eachLeaderStrategy runs f with both, on a database of a peer each: its
// consumers a, b and c have no worker, and its log has ten events, of which the
// fourth is missing.
func eachLeaderStrategy(t *testing.T, f func(t *testing.T, d *pgtest.Database, p *legacy.Process, s worker.LeaderStrategy)) {
	for _, s := range []worker.LeaderStrategy{worker.LeaderStrategyAdvisory, worker.LeaderStrategyLease} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t)
			d.Exec(t, legacy.StoreTables+legacy.WorkerTables)
			d.Exec(t, `CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, position BIGINT NOT NULL)`)
			for v := 1; v <= 11; v++ {
				if v == 4 {
					d.Exec(t, `SELECT nextval('events_global_position_seq')`)
					continue
				}
				d.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) VALUES ('Order', $1::text, 1, $2::uuid, 'Happened', '{}')`, uuid.NewString(), uuid.NewString())
			}
			p := legacy.Start(t, d.DB, "a", "b", "c")
			if s == worker.LeaderStrategyLease {
				p.Lease()
			} else {
				p.Lead()
			}
			f(t, d, p, s)
		})
	}
}

func namedLedgers(names ...string) (all []consumer.Consumer) {
	for _, name := range names {
		all = append(all, &ledger{name: name})
	}
	return all
}

// handles does a peer's batch, of all that the log has up to a position.
func handles(t *testing.T, b *legacy.Batch, consumer string, after, to int64) {
	t.Helper()
	if _, err := b.Exec(`INSERT INTO ledger (consumer, position) SELECT $1::text, global_position FROM events WHERE global_position > $2::bigint AND global_position <= $3::bigint ORDER BY global_position`, consumer, after, to); err != nil {
		t.Fatal(err)
	}
}

var ten = []int64{1, 2, 3, 5, 6, 7, 8, 9, 10, 11}

// A database of a peer goes on here: each event is handled once. The upgrade
// waits for the peer's batch, and does not meet it, or its farewell, in a ring.
func TestUpgradeOfAPeersDatabase(t *testing.T) {
	t.Parallel()
	eachLeaderStrategy(t, func(t *testing.T, d *pgtest.Database, p *legacy.Process, s worker.LeaderStrategy) {
		p.Assign("a", "b")
		b := p.Begin("a")
		handles(t, b, "a", 0, 6)
		p.Skipped("a", 4, 6, 11)
		applied := make(chan error, 1)
		go func() { applied <- migrations.Apply(context.Background(), d.DB, nil) }()
		await(t, "the upgrade to wait for the batch", func() (waits bool) {
			err := d.DB.QueryRow(`SELECT EXISTS (SELECT FROM pg_locks WHERE ` + pgtest.Here + ` AND NOT granted AND relation = 'consumer_assignments'::regclass)`).Scan(&waits)
			return err == nil && waits
		})
		if s == worker.LeaderStrategyAdvisory { // the foreign key takes the worker from a and b, or the worker dies
			left := p.LeaveLater()
			defer func() {
				if err := <-left; err != nil {
					t.Error(err)
				}
			}()
		}
		b.End(6)
		if err := <-applied; err != nil {
			t.Fatal(err)
		}
		w := start(t, d.DB, namedLedgers("a", "b", "c"), worker.WithLeaderStrategy(s), worker.WithHeartbeatTimeout(time.Minute))
		for _, name := range []string{"a", "b", "c"} {
			awaitHandled(t, d.DB, name, ten...)
		}
		appendN(t, d.DB, "Order", "new", 2)
		for _, name := range []string{"a", "b", "c"} {
			awaitHandled(t, d.DB, name, append(ten, 12, 13)...)
		}
		if st := w.Status(); !st.Leader || st.CoordinationError != nil || st.FrontierError != nil || len(st.Unowned) > 0 {
			t.Errorf("the status is %+v", st)
		}
	})
}

// The peer's last process has left the list and has a batch in flight, which
// keeps its consumer. The other consumers go on at once, this one when the
// batch has ended, and behind it.
func TestGoingOverWhileAPeerShutsDown(t *testing.T) {
	t.Parallel()
	eachLeaderStrategy(t, func(t *testing.T, d *pgtest.Database, p *legacy.Process, s worker.LeaderStrategy) {
		if err := migrations.Apply(t.Context(), d.DB, nil); err != nil {
			t.Fatal(err)
		}
		// What a process of theirs does finds the tables as they were.
		last := legacy.Start(t, d.DB, "a", "d")
		last.Lease()
		last.Beat()
		last.Assign("a", "b", "c", "d")
		p.Leave()
		last.Lease()
		last.Skipped("d", 4, 6, 11)
		b := last.Begin("a")
		handles(t, b, "a", 0, 6)

		w := start(t, d.DB, namedLedgers("a", "b", "c"), worker.WithLeaderStrategy(s))
		awaitHandled(t, d.DB, "b", ten...)
		awaitHandled(t, d.DB, "c", ten...)
		last.Leave()
		if n := len(handled(t, d.DB, "a")); n > 0 || checkpoint(t, d.DB, "a") != 0 {
			t.Errorf("beside the peer's batch, %d events were handled", n)
		}
		await(t, "the status to show that nobody runs a", func() bool {
			u := w.Status().Unowned
			return len(u) > 0 && u[0] == "a"
		})
		b.End(6)
		awaitHandled(t, d.DB, "a", ten...)
		await(t, "the status to show that a is run", func() bool {
			u := w.Status().Unowned
			return len(u) == 1 && u[0] == "d" // that it has no code for
		})
	})
}

// A guard that waits for a peer's batch finds the checkpoint moved, though the
// peer knows no revision.
func TestGuardThatWaitsForAPeersBatch(t *testing.T) {
	t.Parallel()
	eachLeaderStrategy(t, func(t *testing.T, d *pgtest.Database, p *legacy.Process, s worker.LeaderStrategy) {
		if err := migrations.Apply(t.Context(), d.DB, nil); err != nil {
			t.Fatal(err)
		}
		w := start(t, d.DB, namedLedgers("a"), worker.WithLeaderStrategy(s))
		awaitHandled(t, d.DB, "a", ten...)
		tx, err := d.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		// Their leader has given them the consumer, and takes it back before
		// this batch ends: the guard's snapshot shows it as the worker's.
		if _, err := tx.Exec(`SELECT FROM consumer_checkpoints WHERE consumer_name = 'a' FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		appendN(t, d.DB, "Order", "new", 3)
		await(t, "the worker's guard to wait", func() (waits bool) {
			err := d.DB.QueryRow(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%guard%')`).Scan(&waits)
			return err == nil && waits
		})
		for _, query := range []string{
			`INSERT INTO ledger (consumer, position) VALUES ('a', 12), ('a', 13)`,
			`UPDATE consumer_checkpoints SET last_position = 13, updated_at = now() WHERE consumer_name = 'a'`,
		} {
			if _, err := tx.Exec(query); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		awaitHandled(t, d.DB, "a", append(ten, 12, 13, 14)...)
		if err := w.Status().CoordinationError; err != nil {
			t.Error(err)
		}
	})
}
