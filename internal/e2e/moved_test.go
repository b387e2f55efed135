package e2e

import (
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/lib/pq"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store/consumer"
)

// The program in testdata/moved uses what workers of this family have in common,
// in each way that programs for them do. With other import paths it runs here.
func TestProgramsForOtherWorkersRun(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	program := filepath.Join(folder, "moved")
	if out, err := exec.Command("go", "build", "-o", program, "./testdata/moved").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	schema := migrated(t, program, folder)

	all := []string{"worker ", "overview: Order o-1 1", "overview: Order o-1 2",
		"audit: Order o-1 1", "audit: Order o-1 2", "audit: User u-1 1"}
	for setup, want := range map[string][]string{
		"defaults":   all,
		"some":       append(slices.Clone(all), "stopped by itself"),
		"poll":       all,
		"notify":     all,
		"everything": all,
	} {
		t.Run(setup, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t)
			d.Exec(t, schema)
			run(t, program, []string{"SETUP=" + setup, "DATABASE_URL=" + d.URL}, want...)
		})
	}
}

// migrated returns the SQL files that the program writes, and the store's.
func migrated(t *testing.T, program, folder string) (schema string) {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), "SETUP=migrate")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	schema, err := migrations.StoreSQL(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1_usual.sql", "2_infra.sql"} {
		text, err := os.ReadFile(filepath.Join(folder, "sql", name))
		if err != nil {
			t.Fatal(err)
		}
		schema += string(text)
	}
	return schema
}

// A consumer says once, at the start, what it is called and what it wants.
func TestNameAndTypesAreAskedOnce(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	d.DB.SetMaxOpenConns(4)                                      // the least
	c := &fickle{ledger: ledger{name: strings.Repeat("n", 200)}} // the longest
	start(t, d.DB, []consumer.Consumer{c})
	appendN(t, d.DB, "Order", "1", 2)
	appendN(t, d.DB, "User", "1", 1)
	appendN(t, d.DB, "Order", "2", 1)
	awaitHandled(t, d.DB, c.name, 1, 2, 4)
	if names, types := c.names.Load(), c.types.Load(); names != 1 || types != 1 {
		t.Errorf("the name was asked %d times, the types %d times", names, types)
	}
}

// fickle is another consumer each time that it is asked.
type fickle struct {
	ledger
	names, types atomic.Int32
}

func (f *fickle) Name() string {
	return f.name[min(f.names.Add(1)-1, 1):]
}

func (f *fickle) AggregateTypes() []string {
	return []string{"Order", "User"}[f.types.Add(1)-1:][:1]
}

// What eventsalsa/worker and pupsourcing/worker take is refused from here on.
func TestLimitsOfNamesAndPools(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("postgres", "host=127.0.0.1 port=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for name, limit := range map[string]int{strings.Repeat("n", 201): 4, "n#1": 4, "n": 3} {
		db.SetMaxOpenConns(limit)
		err := worker.New(db, newStore(), []consumer.Consumer{&ledger{name: name}}).Start(t.Context())
		if !errors.Is(err, worker.ErrInvalidConfig) {
			t.Errorf("%.10q with %d connections: %v", name, limit, err)
		}
	}
}

func TestNothingRefersToAnotherTable(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	var n int
	if err := d.DB.QueryRow(`SELECT count(*) FROM pg_constraint WHERE contype = 'f'`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d foreign keys, %v", n, err)
	}
}

// The defaults are those of eventsalsa/worker, but for a pause and a lag that
// protect nothing here.
func TestDefaultsAreThoseOfOtherWorkers(t *testing.T) {
	t.Parallel()
	c := worker.DefaultConfig()
	names, err := tables.Parse(c.Names)
	if err != nil {
		t.Fatal(err)
	}
	got := []any{c.BatchSize, c.BatchTimeout, c.MaxConsecutiveFailures, c.PollInterval, c.MaxPollInterval, c.DispatcherStrategy, c.DispatcherInterval, c.NotifyChannel,
		c.HeartbeatInterval, c.HeartbeatTimeout, c.RebalanceInterval, c.StaleGapThreshold, c.LeaderStrategy,
		names.Nodes.Name, names.Assignments.Name, names.Checkpoints.Name, names.GapSkips.Name,
		c.BatchPause, c.StaleGapHarborLag}
	const s = time.Second
	want := []any{100, 30 * s, 5, s, 30 * s, worker.DispatcherStrategyPoll, s / 5, "worker_events",
		5 * s, 30 * s, 5 * s, 30 * s, worker.LeaderStrategyAdvisory,
		"worker_nodes", "consumer_assignments", "consumer_checkpoints", "consumer_gap_skips",
		time.Duration(0), 0}
	if !slices.Equal(got, want) {
		t.Errorf("the defaults are\n%v, want\n%v", got, want)
	}
}
