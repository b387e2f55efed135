package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// wholeCommit is the last one whose programs know no partitions.
const wholeCommit = "f092c422f910c75203e03edd15fa144d1c31d6bb"

// signingParts is the consumer "c0" of a pod, in partitions.
type signingParts struct{ count int }

func (s signingParts) Name() string                    { return "c0" }
func (s signingParts) Partitions() consumer.Partitions { return consumer.Partitions{Count: s.count} }

func (s signingParts) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO signed (consumer, position, aggregate, version, process) VALUES ('c0', $1, $2, $3, 'new')`,
		e.GlobalPosition, e.AggregateID, e.AggregateVersion)
	return err
}

// Under load, an upgrade splits a consumer when the last program is gone that knows
// no partitions. When one comes back, it is merged, and goes on there.
func TestPartitionsBesideOldPrograms(t *testing.T) {
	tier.Long(t, "TestNoPartsBesideAnotherLibrary, which plays the row of a worker without partitions")
	t.Parallel()
	program := buildPod(t, wholeCommit)
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE signed (id BIGSERIAL, consumer TEXT, position BIGINT, aggregate TEXT, version BIGINT, process TEXT)`)
	r := role{Consumers: 1, Heartbeat: 200 * time.Millisecond, HeartbeatTimeout: 5 * time.Second}
	older := func(name string) *process { r.Name = name; return startProgram(t, program, d, r) }
	newer := func() *running { return start(t, d.DB, []consumer.Consumer{signingParts{4}}) }
	units := func(n int, done func(layout []string) bool) {
		t.Helper()
		await(t, fmt.Sprintf("%d units", n), func() bool {
			var want []string
			for _, r := range partition.Cut(n) {
				want = append(want, partition.Name("c0", r))
			}
			return slices.Equal(layout(t, d.DB), want) && (done == nil || done(want))
		})
	}
	handles := func(process string) {
		t.Helper()
		from := one[int64](t, d.DB, `SELECT coalesce(max(global_position), 0) FROM events`)
		await(t, process+" to handle events", func() bool {
			return one[int](t, d.DB, `SELECT count(*) FROM signed WHERE position > $1 AND process LIKE $2`, from, process) > 0
		})
	}
	first := older("process-old-1")
	await(t, "the old program to make its tables", func() bool {
		return one[bool](t, d.DB, `SELECT to_regclass('consumer_checkpoints_schema') IS NOT NULL`)
	})
	stop := load(t, d.DB, 20)
	handles("process-old-1")
	if err := migrations.Apply(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	one1, one2 := newer(), newer()
	await(t, "three workers", func() bool { return one[int](t, d.DB, `SELECT count(*) FROM worker_nodes`) == 3 })
	handles("%") // the worker that it was dealt to
	if got := layout(t, d.DB); !slices.Equal(got, []string{"c0"}) {
		t.Errorf("beside an old program the units are %q", got)
	}
	first.signal(t, syscall.SIGTERM)
	first.ended(t)
	units(4, nil)
	handles("new")

	second := older("process-old-2")
	units(1, nil)
	one1.Stop()
	one2.Stop()
	for _, w := range []*running{one1, one2} {
		if err := w.result(t); err != nil {
			t.Fatal(err)
		}
	}
	handles("process-old-2")
	stop()
	await(t, "every event to be handled", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM events WHERE global_position NOT IN (SELECT position FROM signed)`) == 0
	})
	second.signal(t, syscall.SIGTERM)
	second.ended(t)
	checkSigned(t, d)
	if row := one[string](t, d.DB, `SELECT string_agg((to_jsonb(c) - 'created_at' - 'updated_at' - 'revision' - 'last_position' - 'receipt')::text, ' ') FROM consumer_checkpoints AS c`); strings.Count(row, "null") != 5 || !strings.Contains(row, `"partition_key": ""`) {
		t.Errorf("the row is %s", row)
	}
}

// A consumer that asks for no partitions leaves the rows that it left before there were
// any, in every table: columns that are new say nothing.
func TestRowsOfAWholeConsumerAreThoseOfBefore(t *testing.T) {
	tier.Long(t, "TestAConsumerIsSplitAndMerged, which compares the row of a whole consumer before and after")
	t.Parallel()
	today := filepath.Join(t.TempDir(), "pod")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", today, "./testdata/pod").CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	before := rowsOfPod(t, buildPod(t, wholeCommit))
	after := rowsOfPod(t, today)
	if len(before["consumer_gap_skips"]) != 1 || len(before["consumer_checkpoints"]) != 1 {
		t.Fatalf("the old program left %v", before)
	}
	for table, rows := range before {
		if len(rows) != len(after[table]) {
			t.Errorf("%s had %v and has %v", table, rows, after[table])
			continue
		}
		for i, row := range rows {
			for column, value := range after[table][i] {
				was, old := row[column]
				switch said := !slices.Contains([]string{"null", `""`, "{}", "[]"}, value); {
				case old && value != was:
					t.Errorf("%s.%s was %s and is %s", table, column, was, value)
				case !old && said:
					t.Errorf("the new column %s.%s says %s", table, column, value)
				}
			}
		}
	}
}

// rowsOfPod lets a program handle some events, after a position that stays void, and
// returns the rows of the library's tables, by column. What differs from run to run is
// shown by its type, and ids of events are.
func rowsOfPod(t *testing.T, program string) map[string][]map[string]string {
	t.Helper()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE signed (id BIGSERIAL, consumer TEXT, position BIGINT, aggregate TEXT, version BIGINT, process TEXT)`)
	p := startProgram(t, program, d, role{Name: "process", Consumers: 1, Heartbeat: 200 * time.Millisecond, HeartbeatTimeout: 5 * time.Second})
	await(t, "the consumer to be assigned", func() bool {
		return one[bool](t, d.DB, `SELECT to_regclass('consumer_checkpoints_schema') IS NOT NULL`) &&
			one[int](t, d.DB, `SELECT count(*) FROM consumer_assignments WHERE worker_id IS NOT NULL`) == 1
	})
	d.Exec(t, `SELECT nextval(pg_get_serial_sequence('events', 'global_position'))`) // which nobody will commit
	tx, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		if _, err := newStore().Append(t.Context(), tx, store.Any(), []store.Event{event("Order", fmt.Sprint("a", i%3))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	await(t, "the events to be handled", func() bool {
		return one[bool](t, d.DB, `SELECT last_position = (SELECT max(global_position) FROM events) FROM consumer_checkpoints`)
	})
	all := map[string][]map[string]string{}
	var tables []string
	unmarshal(t, one[string](t, d.DB, `
SELECT jsonb_agg(table_name)::text FROM information_schema.tables
WHERE table_schema = current_schema() AND table_name NOT IN ('signed', 'events') AND table_name NOT LIKE '%schema%'`), &tables)
	for _, table := range tables {
		var rows []map[string]json.RawMessage
		unmarshal(t, one[string](t, d.DB, `SELECT coalesce(jsonb_agg(r), '[]')::text FROM `+table+` AS r`), &rows)
		for _, row := range rows {
			shown := map[string]string{}
			for column, value := range row {
				shown[column] = steady(column, string(value))
			}
			all[table] = append(all[table], shown)
		}
	}
	p.signal(t, syscall.SIGTERM)
	p.ended(t)
	return all
}

func unmarshal(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

var (
	anID   = regexp.MustCompile(`^"[0-9a-f]{8}-[0-9a-f-]{27}"$`)
	aTime  = regexp.MustCompile(`^"\d{4}-\d\d-\d\dT[^"]*"$`)
	moving = []string{"revision", "term", "pid", "build", "database", "log", "settled", "count", "status"}
)

// steady is the value of a column, or its kind if each run has another value.
func steady(column, value string) string {
	switch {
	case anID.MatchString(value):
		return "an id"
	case aTime.MatchString(value):
		return "a time"
	case slices.Contains(moving, column):
		return "moving"
	}
	return value
}

// checkSigned checks that each event was handled once, and those of an aggregate in order.
func checkSigned(t *testing.T, d *pgtest.Database) {
	t.Helper()
	if n := one[int](t, d.DB, `SELECT count(*) - count(DISTINCT position) FROM signed`); n > 0 {
		t.Errorf("%d events were handled twice", n)
	}
	if n := one[int](t, d.DB, `SELECT count(*) FROM (SELECT version < lag(version) OVER (PARTITION BY aggregate ORDER BY id) AS back FROM signed) AS s WHERE back`); n > 0 {
		t.Errorf("%d events were handled out of order", n)
	}
}

// Old programs and new ones come, go, lead and are killed in any order: each event is
// handled once, and in order. Where an old one leads, nobody runs a part until it has
// gone.
func TestOldAndNewProgramsInAnyOrder(t *testing.T) {
	tier.Long(t, "TestNoPartsBesideAnotherLibrary, which plays the row of a worker without partitions")
	t.Parallel()
	program := buildPod(t, wholeCommit)
	d := newLog(t)
	d.Exec(t, `CREATE TABLE signed (id BIGSERIAL, consumer TEXT, position BIGINT, aggregate TEXT, version BIGINT, process TEXT)`)
	o := operator(t, d)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	count := func() int { return []int{2, 3, 5, 8}[dice.IntN(4)] }

	var old []*process
	var current []*running
	n := 0
	comeOld := func() {
		n++
		old = append(old, startProgram(t, program, d, role{Name: fmt.Sprint("process-old-", n), Consumers: 1, Heartbeat: 100 * time.Millisecond, HeartbeatTimeout: time.Second}))
	}
	goOld := func(how syscall.Signal) {
		if len(old) == 0 {
			return
		}
		i := dice.IntN(len(old))
		_ = old[i].Signal(how) // it may have ended: no connection is safe while it starts
		old[i].ended(t)
		old = slices.Delete(old, i, i+1)
	}
	come := func() { current = append(current, start(t, d.DB, []consumer.Consumer{signingParts{count()}})) }
	leave := func() {
		if len(current) == 1 {
			return
		}
		i := dice.IntN(len(current))
		current[i].Stop()
		if err := current[i].result(t); err != nil {
			t.Error(err)
		}
		current = slices.Delete(current, i, i+1)
	}
	alone := func() { // an old one leads, and gives the consumer to one that knows it as a whole
		comeOld()
		for _, w := range current {
			w.Stop()
			if err := w.result(t); err != nil {
				t.Error(err)
			}
		}
		current = nil
		await(t, "the consumer to be dealt out as a whole", func() bool {
			return one[bool](t, d.DB, `SELECT EXISTS (SELECT FROM consumer_assignments WHERE consumer_name = 'c0')`) || len(old) == 0
		})
		come()
	}
	fix := func() {
		if err := o.Partition(t.Context(), "c0", count(), by); err != nil {
			t.Error(err)
		}
	}
	cut := func() {
		d.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'process-old-%' AND random() < 0.3`)
	}
	stopOld, killOld := func() { goOld(syscall.SIGTERM) }, func() { goOld(syscall.SIGKILL) }
	some := func(steps ...func()) {
		for range dice.IntN(4) {
			steps[dice.IntN(len(steps))]()
		}
	}
	state := func() string { // of all that a split waits for
		return one[string](t, d.DB, `SELECT string_agg(row, E'\n') FROM (
			SELECT 'node ' || to_jsonb(n)::text AS row FROM worker_nodes AS n
			UNION ALL SELECT 'assignment ' || to_jsonb(a)::text FROM consumer_assignments AS a
			UNION ALL SELECT 'checkpoint ' || to_jsonb(c)::text FROM consumer_checkpoints AS c
			UNION ALL SELECT 'lock ' || to_jsonb(l)::text FROM pg_locks AS l WHERE NOT granted OR locktype = 'advisory'
			UNION ALL SELECT 'session ' || jsonb_build_array(pid, application_name, state, wait_event, clock_timestamp() - xact_start, left(query, 200)) FROM pg_stat_activity WHERE datname = current_database()
		) AS all_of_it`)
	}
	come()
	stop := load(t, d.DB, 20)
	for range 6 {
		for len(old) > 0 {
			[]func(){stopOld, killOld}[dice.IntN(2)]()
		}
		for len(current) > 1 {
			leave() // while new ones disagree about the number, the consumer stays whole
		}
		await(t, "the consumer to be split", func() bool { return len(layout(t, d.DB)) > 1 }, state)
		some(come, leave, fix)
		comeOld()
		registered := old[len(old)-1].name
		await(t, "an old program to be there", func() bool {
			return one[bool](t, d.DB, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1)
				AND EXISTS (SELECT FROM worker_nodes WHERE partitions IS NULL)`, registered)
		})
		some(alone, cut, comeOld, come, leave, fix, stopOld, killOld)
	}
	stop()
	for len(old) > 0 {
		goOld(syscall.SIGKILL)
	}
	await(t, "every event to be handled", func() bool {
		return one[bool](t, d.DB, `SELECT NOT EXISTS (SELECT FROM events WHERE global_position NOT IN (SELECT position FROM signed))`)
	})
	checkSigned(t, d)
}
