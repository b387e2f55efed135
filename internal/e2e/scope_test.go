package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store/consumer"
)

// of is a build of consumer c that names types.
func of(types ...string) consumer.Consumer { return &scopedLedger{ledger{name: "c", types: types}} }

// versioned is a build with a number.
type versioned struct {
	ledger
	version int
}

func (v *versioned) Version() int { return v.version }

// scopesTold are what an observer was told of scopes.
type scopesTold struct {
	mu      sync.Mutex
	changes []observe.ScopeChanged
	waits   []error
}

func (s *scopesTold) observer() worker.Option {
	return worker.WithObserver(observe.On(func(c observe.ScopeChanged) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changes = append(s.changes, c)
	}),
		observe.On(func(w observe.ConsumerWaiting) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.waits = append(s.waits, w.Err)
		}))
}

func (s *scopesTold) all() []observe.ScopeChanged {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.changes)
}

// startBuild starts a worker and waits until it runs.
func startBuild(t *testing.T, d *pgtest.Database, c consumer.Consumer, opts ...worker.Option) *running {
	t.Helper()
	ready := make(chan struct{})
	w := start(t, d.DB, []consumer.Consumer{c}, append(opts, worker.WithObserver(observe.On(func(observe.WorkerStarted) { close(ready) })))...)
	select {
	case <-ready:
	case <-time.After(pgtest.Patience):
		t.Fatal("the worker does not start")
	}
	return w
}

// holdAssignment keeps the leader from giving consumer c to another worker.
func holdAssignment(t *testing.T, d *pgtest.Database) (leave func()) {
	t.Helper()
	tx, err := d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`SELECT FROM consumer_assignments WHERE consumer_name = 'c' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return func() { _ = tx.Rollback() }
}

func (r *running) end(t *testing.T) {
	t.Helper()
	r.Stop()
	if err := r.result(t); err != nil {
		t.Fatal(err)
	}
}

// A deployment adds a type, and takes it back. From the start of the first new worker on,
// no old one passes an event of the new type, however the assignments stand. When the last
// new one has stopped, the old ones go on.
func TestBuildsThatDifferDoNotRunSideBySide(t *testing.T) {
	t.Parallel()
	for _, strategy := range []worker.LeaderStrategy{worker.LeaderStrategyAdvisory, worker.LeaderStrategyLease} {
		t.Run(fmt.Sprint(strategy), func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			lease := worker.WithLeaderStrategy(strategy)
			old := startBuild(t, d, of("Order"), lease)
			appendN(t, d.DB, "Order", "1", 2)
			appendN(t, d.DB, "Invoice", "1", 1) // 3: nobody wants it
			awaitHandled(t, d.DB, "c", 1, 2)
			await(t, "the old build to have passed the invoice", func() bool { return old.Status().Consumers[0].Position == 3 })
			appendN(t, d.DB, "Order", "1", 1)
			awaitHandled(t, d.DB, "c", 1, 2, 4) // and it is written down
			var told scopesTold
			leave := holdAssignment(t, d)
			wide := startBuild(t, d, of("Order", "Invoice"), lease, told.observer())
			for range 3 {
				appendN(t, d.DB, "Invoice", "1", 1)
				appendN(t, d.DB, "Order", "1", 1)
			}
			await(t, "the old build to wait", func() bool {
				return strings.Contains(fmt.Sprint(old.Status().Consumers[0].LastError), "which goes first")
			})
			leave()
			awaitHandled(t, d.DB, "c", 1, 2, 4, 5, 6, 7, 8, 9, 10)
			if all := told.all(); len(all) != 1 || all[0].Position != 4 || !slices.Equal(all[0].Added, []string{"Invoice"}) || all[0].Removed != nil {
				t.Errorf("the new build told %+v", all)
			}
			if n := one[int](t, d.DB, `SELECT count(*) FROM consumer_operations WHERE operation = 'scope' AND detail->>'position' = '4' AND reason LIKE '%Invoice%'`); n != 1 {
				t.Errorf("%d rows in the table of operations", n)
			}
			other := startBuild(t, d, of("Order"), lease) // an old one that starts again
			appendN(t, d.DB, "Invoice", "1", 2)
			awaitHandled(t, d.DB, "c", 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12)
			if n := one[int](t, d.DB, `SELECT count(*) FROM consumer_operations WHERE operation = 'scope'`); n != 1 {
				t.Errorf("%d changes of the scope", n)
			}
			old.end(t)
			wide.end(t)
			appendN(t, d.DB, "Invoice", "1", 1) // 13
			appendN(t, d.DB, "Order", "1", 1)
			awaitHandled(t, d.DB, "c", 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14)
			if got := one[string](t, d.DB, `SELECT detail->>'position' FROM consumer_operations WHERE operation = 'scope' ORDER BY id DESC LIMIT 1`); got != "12" && got != "13" {
				t.Errorf("the old build went on at %s", got)
			}
			other.end(t)
		})
	}
}

// Whatever the assignments say, code that selects less than that of a living worker waits,
// and says for whom. When that worker is dead, it goes on.
func TestOutrankedBuildWaits(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	old := startBuild(t, d, of("Order"))
	appendN(t, d.DB, "Order", "1", 1)
	awaitHandled(t, d.DB, "c", 1)
	old.end(t)
	ghost := uuid.New()
	d.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid, partitions) VALUES ($1, '{}', 'there', 7, '{"c": {"count": 1, "scope": {"types": ["Invoice", "Order"]}}}')`, ghost)
	d.Exec(t, `UPDATE consumer_checkpoints SET scope = '{"types": ["Invoice", "Order"]}', revision = revision + 1`)
	appendN(t, d.DB, "Invoice", "1", 1)
	var told scopesTold
	w := startBuild(t, d, of("Order"), told.observer(), worker.WithHeartbeatTimeout(time.Minute))
	await(t, "it to wait", func() bool {
		err := w.Status().Consumers[0].LastError
		return err != nil && strings.Contains(err.Error(), "this build selects Order, and worker "+ghost.String()+" (there/7) runs one that selects Invoice, Order")
	})
	d.Exec(t, `UPDATE worker_nodes SET heartbeat_at = heartbeat_at - interval '1 hour' WHERE worker_id = $1`, ghost) // its row stays
	appendN(t, d.DB, "Order", "1", 1)
	awaitHandled(t, d.DB, "c", 1, 3)
	await(t, "no complaint to be left", func() bool { return w.Status().Consumers[0].LastError == nil })
	all := told.all()
	if len(all) != 1 || all[0].Position != 1 || !slices.Equal(all[0].Removed, []string{"Invoice"}) || all[0].Added != nil {
		t.Errorf("told %+v", all)
	}
	if len(told.waits) != 1 {
		t.Errorf("told %d times that it waits: %v", len(told.waits), told.waits)
	}
}

// A worker that registers while another takes the consumer over has read its own scope in
// the row. So the other gives the consumer back.
func TestTakeOverIsConfirmed(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	const wide = `{"types": ["Invoice", "Order"]}`
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, scope, scope_since) VALUES ('c', 0, '`+wide+`', 0)`)
	d.Exec(t, `CREATE FUNCTION registers() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO worker_nodes (worker_id, consumers, partitions) VALUES (gen_random_uuid(), '{}', '{"c": {"count": 1, "scope": `+wide+`}}');
		RETURN NULL; END $$`)
	d.Exec(t, `CREATE TRIGGER meanwhile AFTER UPDATE OF scope ON consumer_checkpoints FOR EACH ROW WHEN (NEW.scope::text NOT LIKE '%Invoice%') EXECUTE FUNCTION registers()`)
	appendN(t, d.DB, "Invoice", "1", 1)
	appendN(t, d.DB, "Order", "1", 1)
	w := startBuild(t, d, of("Order"), worker.WithHeartbeatTimeout(time.Minute))
	await(t, "it to wait", func() bool {
		return strings.Contains(fmt.Sprint(w.Status().Consumers[0].LastError), "which goes first")
	})
	if got := one[string](t, d.DB, `SELECT scope::text FROM consumer_checkpoints`); got != wide || handled(t, d.DB, "c") != nil {
		t.Errorf("the row has %s, handled are %v", got, handled(t, d.DB, "c"))
	}
}

// A row of an earlier version of this library has no scope. The worker records one, and
// reports no change.
func TestScopeOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 0)`)
	var told scopesTold
	startBuild(t, d, of("Order"), told.observer())
	appendN(t, d.DB, "Order", "1", 1)
	awaitHandled(t, d.DB, "c", 1)
	if got := one[string](t, d.DB, `SELECT scope::text FROM consumer_checkpoints`); got != `{"types": ["Order"]}` {
		t.Errorf("recorded %s", got)
	}
	if n := one[int](t, d.DB, `SELECT count(*) FROM consumer_operations`); n != 0 || len(told.all()) != 0 {
		t.Errorf("%d operations, told %v", n, told.all())
	}
}

// The build with the higher number runs the consumer, whatever comes first.
func TestHigherVersionRunsTheConsumer(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	startBuild(t, d, &versioned{ledger{name: "c"}, 1})
	appendN(t, d.DB, "Order", "1", 1)
	awaitHandled(t, d.DB, "c", 1)
	second := startBuild(t, d, &versioned{ledger{name: "c"}, 2})
	startBuild(t, d, &ledger{name: "c"})
	for n := int64(2); n < 12; n++ {
		appendN(t, d.DB, "Order", "1", 1)
		awaitHandled(t, d.DB, "c", upTo(n)...)
	}
	await(t, "the build of version 2 to have handled all 10 events", func() bool { return second.Status().Consumers[0].Handled == 10 })
	if w := worker.New(d.DB, newStore(), []consumer.Consumer{&versioned{ledger{name: "c"}, -1}}); !strings.Contains(fmt.Sprint(w.Start(t.Context())), "Version gives -1, which is below 0") {
		t.Error("a version below 0 is accepted")
	}
}

// A projection has a name that a consumer could have, and no consumer of something else has it.
func TestProjectionIsChecked(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]string{"": "", "p": "", "a": "the name of a consumer", "v": "", "a#1": "'#' is not allowed", " ": "is empty", "a\x00": "control character"} {
		_, err := worker.Describe([]consumer.Consumer{projected{&ledger{name: "v"}, name}, &ledger{name: "a"}})
		if refused := errors.Is(err, worker.ErrInvalidConfig); refused != (refusal != "") || refused && !strings.Contains(err.Error(), refusal) {
			t.Errorf("projection %q: %v, want %q", name, err, refusal)
		}
	}
}

// The parts of a consumer have the scope of the whole, and so has what they become.
func TestScopeOfPartitions(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	parted := func(types ...string) consumer.Consumer {
		return &partedScoped{scopedLedger{ledger{name: "c", types: types}}}
	}
	o := operator(t, d)
	old := startBuild(t, d, parted("Order"))
	number := func(n int) {
		t.Helper()
		if err := o.Partition(t.Context(), "c", n, byAnn); err != nil {
			t.Fatal(err)
		}
		await(t, fmt.Sprintf("%d partitions", n), func() bool {
			return one[int](t, d.DB, `SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL`) == n
		})
		if got := one[int](t, d.DB, `SELECT count(DISTINCT scope) FROM consumer_checkpoints WHERE split_at IS NULL AND scope IS NOT NULL`); got != 1 {
			t.Errorf("%d scopes in %d partitions", got, n)
		}
	}
	appendN(t, d.DB, "Order", "1", 1)
	number(4)
	for i := range 8 {
		appendN(t, d.DB, "Order", fmt.Sprint(i), 1)
	}
	await(t, "all orders", func() bool { return len(handled(t, d.DB, "c")) == 9 })
	startBuild(t, d, parted("Order", "Invoice"))
	for i := range 8 {
		appendN(t, d.DB, "Invoice", fmt.Sprint(i), 1)
	}
	await(t, "all invoices", func() bool { return len(handled(t, d.DB, "c")) == 17 })
	number(1)
	old.end(t)
	appendN(t, d.DB, "Invoice", "1", 1)
	await(t, "the last invoice", func() bool { return len(handled(t, d.DB, "c")) == 18 })
}

type partedScoped struct{ scopedLedger }

func (*partedScoped) Partitions() consumer.Partitions { return consumer.Partitions{Count: 1} }
