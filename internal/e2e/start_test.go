package e2e

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// Whatever Start is given that cannot work, it says so, names the remedy,
// returns, and leaves nothing behind.
func TestStartRefuses(t *testing.T) {
	t.Parallel()
	good := []consumer.Consumer{&ledger{name: "c"}}
	var nilConsumer *ledger
	unused := pgtest.New(t)
	role := "reader_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	for name, test := range map[string]struct {
		db        func(t *testing.T, d *pgtest.Database) *sql.DB // nil: the test's own
		store     store.Log
		consumers []consumer.Consumer
		opts      []worker.Option
		prepare   string // SQL
		config    bool   // found without the database
		words     []string
	}{
		"a nil db": {
			db:     func(*testing.T, *pgtest.Database) *sql.DB { return nil },
			config: true, words: []string{"db is nil", "sql.Open"},
		},
		"a nil store":        {store: (*storepostgres.Store)(nil), config: true, words: []string{"eventStore is nil", "NewStore"}},
		"no consumers":       {consumers: []consumer.Consumer{}, config: true, words: []string{"at least one"}},
		"a nil consumer":     {consumers: []consumer.Consumer{good[0], nil}, config: true, words: []string{"consumers[1]", "nil"}},
		"a nil pointer":      {consumers: []consumer.Consumer{nilConsumer}, config: true, words: []string{"consumers[0]", "nil"}},
		"an unnamed one":     {consumers: []consumer.Consumer{&ledger{}}, config: true, words: []string{"consumers[0]", "*e2e.ledger", "Name", "is empty"}},
		"a name with #":      {consumers: []consumer.Consumer{&ledger{name: "a#1"}}, config: true, words: []string{"a#1", "'#'"}},
		"a blank name":       {consumers: []consumer.Consumer{&ledger{name: "   "}}, config: true, words: []string{"consumers[0]", "*e2e.ledger", "is empty"}},
		"a name of lines":    {consumers: []consumer.Consumer{&ledger{name: "a\nb"}}, config: true, words: []string{"consumers[0]", `"a\nb"`, "U+000A"}},
		"an empty type":      {consumers: []consumer.Consumer{typed("Order", "")}, config: true, words: []string{"consumers[0]", "AggregateTypes", `""`, "empty"}},
		"a long type":        {consumers: []consumer.Consumer{typed(strings.Repeat("t", 2_705))}, config: true, words: []string{"AggregateTypes", "2705 bytes", "2704"}},
		"a long name":        {consumers: []consumer.Consumer{&ledger{name: strings.Repeat("n", 300)}}, config: true, words: []string{"300 bytes", "200"}},
		"duplicates":         {consumers: []consumer.Consumer{&ledger{name: "a"}, &ledger{name: "b"}, &ledger{name: "a"}}, config: true, words: []string{"consumers[2]", `"a"`, "consumers[0]"}},
		"a panicking name":   {consumers: []consumer.Consumer{panicking{}}, config: true, words: []string{"consumers[0]", "panicked", "no name"}},
		"a negative start":   {consumers: []consumer.Consumer{&startingLedger{ledger{name: "a"}, consumer.After(-1)}}, config: true, words: []string{"StartAt", "-1"}},
		"no partitions":      {consumers: []consumer.Consumer{inPartitions(0)}, config: true, words: []string{"consumers[0]", `"c"`, "Partitions", "Count of 0"}},
		"a type with NUL":    {consumers: []consumer.Consumer{typed("Order", "a\x00b")}, config: true, words: []string{"consumers[0]", "AggregateTypes", `"a\x00b"`, "NUL"}},
		"a type of a MB":     {consumers: []consumer.Consumer{typed("\xff" + strings.Repeat("t", 1<<20))}, config: true, words: []string{"AggregateTypes", "1048577 bytes"}},
		"no HandleBatch":     {consumers: []consumer.Consumer{unable{}}, config: true, words: []string{"consumers[0]", `"unable"`, "BatchOnly", "HandleBatch"}},
		"an option":          {opts: []worker.Option{worker.WithBatchSize(-1)}, config: true, words: []string{"WithBatchSize", "-1", "1 to 100000"}},
		"options of a MB":    {opts: []worker.Option{worker.WithFailurePolicy(worker.FailurePolicy(strings.Repeat("f", 1<<20))), worker.WithWorkerNodesTable(strings.Repeat("n", 1<<20)), worker.WithNotifyChannel(strings.Repeat("\n", 1<<20))}, config: true, words: []string{"WithFailurePolicy", "Names.WorkerNodes", "WithNotifyChannel", "1048576 bytes"}},
		"a bad store config": {store: storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithEventsTable("a b"))), config: true, words: []string{"Names.Events", "a b"}},
		"too small a pool": {
			db: func(t *testing.T, d *pgtest.Database) *sql.DB {
				d.DB.SetMaxOpenConns(2)
				return d.DB
			},
			config: true, words: []string{"2 open connections", "at least", "SetMaxOpenConns"},
		},
		"missing tables":  {prepare: `DROP TABLE consumer_gap_skips, worker_nodes`, words: []string{"consumer_gap_skips", "worker_nodes", "migrations.Apply"}},
		"no checkpoints":  {prepare: `DROP TABLE consumer_checkpoints`, words: []string{"consumer_checkpoints", "migrations.Apply"}},
		"older tables":    {prepare: `ALTER TABLE consumer_checkpoints DROP COLUMN split_at CASCADE`, words: []string{"consumer_checkpoints", "split_at", "migrations.Apply"}},
		"other tables":    {opts: []worker.Option{worker.WithWorkerNodesTable("elsewhere.nodes")}, words: []string{"elsewhere", "migrations.Apply"}},
		"no events table": {prepare: `DROP TABLE events`, words: []string{"events"}},
		"a cached sequence": {
			prepare: `ALTER SEQUENCE events_global_position_seq CACHE 32`,
			words:   []string{"events_global_position_seq", "CACHE"},
		},
		"row-level security": {
			prepare: `ALTER TABLE events ENABLE ROW LEVEL SECURITY; ALTER TABLE events FORCE ROW LEVEL SECURITY; CREATE ROLE ` + role + `; GRANT ALL ON ALL TABLES IN SCHEMA public TO ` + role + `; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO ` + role,
			db: func(t *testing.T, d *pgtest.Database) *sql.DB {
				db, err := sql.Open("pgx", d.URL+separator(d.URL)+"options=-c%20role%3D"+role)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					db.Close()
					d.Exec(t, `DROP OWNED BY `+role)
					d.Exec(t, `DROP ROLE `+role)
				})
				return db
			},
			words: []string{"row-level security"},
		},
		"another pool's connections": {
			db:     func(t *testing.T, d *pgtest.Database) *sql.DB { return d.OpenLent(t, 4) },
			config: true, words: []string{"pgxpool.Pool", "db.SetMaxOpenConns"},
		},
		"an unreachable server": {
			db: func(t *testing.T, _ *pgtest.Database) *sql.DB {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				address := l.Addr().String()
				l.Close()
				db, err := sql.Open("pgx", "postgres://me:hush@"+address+"/nowhere")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { db.Close() })
				return db
			},
			opts:  []worker.Option{worker.WithHeartbeatInterval(10 * time.Millisecond), worker.WithRetryLimit(20 * time.Millisecond)},
			words: []string{"does not answer", "check the address", "WithRetryLimit", worker.ErrOutage.Error()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := unused
			if !test.config || test.db != nil {
				d = pgtest.New(t)
			}
			if test.prepare != "" {
				for statement := range strings.SplitSeq(test.prepare, ";") {
					d.Exec(t, statement)
				}
			}
			db, log, consumers := d.DB, store.Log(newStore()), good
			if test.db != nil {
				db = test.db(t, d)
			}
			if test.store != nil {
				log = test.store
			}
			if test.consumers != nil {
				consumers = test.consumers
			}
			w := worker.New(db, log, consumers, test.opts...)
			ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
			defer cancel()
			err := w.Start(ctx)
			if err == nil || ctx.Err() != nil {
				t.Fatalf("Start returned %v (context: %v)", err, ctx.Err())
			}
			if text := err.Error(); strings.Contains(text, "\n") || len(text) > 5_000 {
				t.Errorf("%d bytes on %d lines: %.200q", len(text), strings.Count(text, "\n")+1, text)
			}
			if errors.Is(err, worker.ErrInvalidConfig) != test.config {
				t.Errorf("%v is ErrInvalidConfig: %v, want %v", err, !test.config, test.config)
			}
			for _, word := range test.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if strings.Contains(err.Error(), "hush") {
				t.Errorf("%q tells the password", err)
			}
			if db != nil {
				pgtest.AwaitUnused(t, db)
			}
		})
	}
}

// A worker that starts while the database is away waits for it, tells so, and is not ended by an
// orchestrator. A stop ends the wait.
func TestStartWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	db, back := d.OpenAway(t)
	observed := func() (opts []worker.Option, told chan observe.TaskFailed, over chan observe.Recovered) {
		told, over = make(chan observe.TaskFailed, 1000), make(chan observe.Recovered, 1000)
		return append(quick(), worker.WithObserver(observe.On(func(f observe.TaskFailed) { told <- f }),
			observe.On(func(r observe.Recovered) { over <- r }))), told, over
	}
	opts, told, _ := observed()
	stopped := worker.New(db, newStore(), []consumer.Consumer{&ledger{name: "c"}}, opts...)
	ended := make(chan error, 1)
	go func() { ended <- stopped.Start(t.Context()) }()
	<-told
	stopped.Stop()
	if err := <-ended; err != nil {
		t.Errorf("the worker that was stopped returned %v", err)
	}
	opts, told, over := observed()
	w := runWorker(t, worker.New(db, newStore(), []consumer.Consumer{&ledger{name: "c"}}, opts...))
	if f := <-told; f.Task != "start" || !strings.Contains(f.Err.Error(), "the database does not answer") {
		t.Errorf("told: %+v", f)
	}
	if err := w.Live(); err != nil {
		t.Errorf("while it waits: %v", err)
	}
	back()
	awaitHandled(t, d.DB, "c", upTo(3)...)
	if r := <-over; r.Condition != observe.ConditionDatabase {
		t.Errorf("over: %+v", r)
	}
}

// A worker whose connection falls silent while it registers does so again.
func TestStartAfterTheNetworkFellSilent(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	db, hole := d.InMode(pgx.QueryExecModeExec).OpenHole(t)
	hole.Swallow("(worker_id, heartbeat_at, status, ") // of the statement that registers
	told := make(chan observe.TaskFailed, 100)
	w := worker.New(db, newStore(), []consumer.Consumer{&ledger{name: "c"}},
		append(quick(), worker.WithObserver(observe.On(func(f observe.TaskFailed) { told <- f })))...)
	runWorker(t, w)
	if f := <-told; f.Task != "start" || hole.Fallen() != 1 {
		t.Errorf("told: %+v, with %d silent connections", f, hole.Fallen())
	}
	awaitHandled(t, d.DB, "c", upTo(3)...)
}

// On a standby the locks on the log's sequence do not show, so that every gap
// would seem void.
func TestStartRefusesAStandby(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, map[string]string{"wal_level": "replica"})
	open := func() *sql.DB {
		db, err := sql.Open("pgx", server.URL(""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
	db := open()
	cfg := migrations.DefaultConfig()
	if err := migrations.Apply(t.Context(), db, &cfg); err != nil {
		t.Fatal(err)
	}
	var data string
	if err := db.QueryRow(`SHOW data_directory`).Scan(&data); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	// It follows nobody, but it is in recovery.
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := worker.New(open(), newStore(), []consumer.Consumer{&ledger{name: "c"}}).Start(t.Context())
	if !errors.Is(err, worker.ErrStandby) || !strings.Contains(err.Error(), "target_session_attrs=read-write") {
		t.Fatalf("Start on a standby returned %v", err)
	}
}

// TestStartRefusesANilInterface has no place in the table, where nil means
// the default.
func TestStartRefusesANilInterface(t *testing.T) {
	t.Parallel()
	err := worker.New(nil, nil, nil).Start(context.Background())
	for _, want := range []string{"db is nil", "eventStore is nil", "consumers is empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

type panicking struct{}

func (panicking) Name() string { panic("no name") }

func (panicking) Handle(context.Context, *sql.Tx, store.PersistedEvent) error { return nil }

func typed(types ...string) consumer.Consumer {
	return &scopedLedger{ledger{name: "c", types: types}}
}

type unable struct{ consumer.BatchOnly }

func (unable) Name() string { return "unable" }

func separator(url string) string {
	if strings.Contains(url, "?") {
		return "&"
	}
	return "?"
}

// A server that was restarted just now leaves dead connections in the pool.
func TestStartOutlivesDeadConnections(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	db := d.OpenMode(t, pgx.QueryExecModeCacheStatement)
	for range 2 { // pgx trusts a connection that it has seen alive within a second
		var conns [2]*sql.Conn
		for i := range conns {
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			conns[i] = conn
		}
		for _, conn := range conns {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	const others = ` FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`
	d.Exec(t, `SELECT pg_terminate_backend(pid)`+others)
	await(t, "the connections to be dead", func() bool {
		var n int
		return d.DB.QueryRow(`SELECT count(*)`+others).Scan(&n) == nil && n == 0
	})
	w := start(t, db, []consumer.Consumer{&ledger{name: "c"}})
	await(t, "the worker to run", func() bool { return w.Status().State == observe.StateRunning })
}
