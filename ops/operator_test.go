package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// every is every operation on the consumer "c" that full creates.
var every = map[ops.Kind]func(ctx context.Context, o *ops.Operator, consumer string, by ops.By) error{
	ops.KindPause: func(ctx context.Context, o *ops.Operator, c string, by ops.By) error { return o.Pause(ctx, c, by) },
	ops.KindResume: func(ctx context.Context, o *ops.Operator, c string, by ops.By) error {
		return o.Resume(ctx, c, by)
	},
	ops.KindReset: func(ctx context.Context, o *ops.Operator, c string, by ops.By) error {
		return o.Reset(ctx, c, 5, by)
	},
	ops.KindSkip: func(ctx context.Context, o *ops.Operator, c string, by ops.By) error {
		return o.SkipEvent(ctx, c, 3, by)
	},
	ops.KindRetry: func(ctx context.Context, o *ops.Operator, c string, by ops.By) error {
		return o.RetryDeadLetters(ctx, c, 1, by)
	},
	ops.KindDiscard: func(ctx context.Context, o *ops.Operator, c string, by ops.By) error {
		return o.DiscardDeadLetter(ctx, c, 1, by)
	},
}

// full creates a consumer that allows every operation. It is at position 2 of 5, paused or not,
// and has the first event as a dead letter.
func full(t testing.TB, paused bool) site {
	s := newSite(t)
	s.append(t, "a", 5)
	s.settle(t, 5)
	s.place(t, 2)
	s.deadLetter(t, 1, "a", 1)
	if paused {
		s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = clock_timestamp(), paused_by = 'bob', paused_reason = 'lunch'`)
	}
	return s
}

// Every operation raises the revision by one, is recorded with operator, reason and time, and
// notifies the workers. A refused operation changes and records nothing.
func TestEveryOperationIsAudited(t *testing.T) {
	t.Parallel()
	for kind, operate := range every {
		t.Run(string(kind), func(t *testing.T) {
			s := full(t, kind == ops.KindResume)
			table := ident.Table{Name: "consumer_checkpoints_changes"}
			channel, err := changes.Channel(t.Context(), s.DB, table)
			if err != nil {
				t.Fatal(err)
			}
			listener, err := pgx.Connect(t.Context(), s.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close(context.Background()) }()
			if _, err := listener.Exec(t.Context(), "LISTEN "+ident.Quote(channel)); err != nil {
				t.Fatal(err)
			}
			if err := operate(t.Context(), s.Operator, "c", by); err != nil {
				t.Fatal(err)
			}
			if _, revision := s.progress(t); revision != 1 {
				t.Errorf("the revision is %d, want 1", revision)
			}
			var detail map[string]any
			op := s.last(t, &detail)
			if age := time.Since(op.At); op.Kind != kind || op.Consumer != "c" || op.By != by || len(detail) == 0 || age < 0 || age > time.Hour {
				t.Errorf("recorded %+v, %v", op, detail)
			}
			if n := s.count(t, `SELECT count FROM consumer_checkpoints_changes`); n != 1 {
				t.Errorf("the counter of changes is %d, want 1", n)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := listener.WaitForNotification(ctx); err != nil {
				t.Errorf("awaited a notification on %s: %v", channel, err)
			}
		})
	}
}

func TestEveryOperationRefusesInvalidArguments(t *testing.T) {
	t.Parallel()
	s := full(t, false)
	ctx := t.Context()
	for name, c := range map[string]struct {
		consumer string
		by       ops.By
		want     error
		says     string
	}{
		"no operator":      {"c", ops.By{Reason: "why"}, ops.ErrInvalid, "By.Operator is empty"},
		"a blank operator": {"c", ops.By{Operator: " \t", Reason: "why"}, ops.ErrInvalid, "By.Operator is empty"},
		"a long operator":  {"c", ops.By{Operator: strings.Repeat("x", 201), Reason: "why"}, ops.ErrInvalid, "By.Operator has 201 bytes, at most 200"},
		"no reason":        {"c", ops.By{Operator: "ann"}, ops.ErrInvalid, "By.Reason is empty"},
		"a long reason":    {"c", ops.By{Operator: "ann", Reason: strings.Repeat("x", 2001)}, ops.ErrInvalid, "By.Reason has 2001 bytes, at most 2000"},
		"a NUL":            {"c", ops.By{Operator: "ann", Reason: "a\x00b"}, ops.ErrInvalid, "By.Reason"},
		"no consumer":      {"", by, ops.ErrInvalid, "the consumer's name is empty"},
		"a blank consumer": {"   ", by, ops.ErrInvalid, "the consumer's name is empty"},
		"a name of lines":  {"a\nb", by, ops.ErrInvalid, `the consumer's name "a\nb" has the control character U+000A`},
		"another consumer": {"d", by, ops.ErrNoCheckpoint, `"d": it has no row in the checkpoints table`},
	} {
		for kind, operate := range every {
			err := operate(ctx, s.Operator, c.consumer, c.by)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), fmt.Sprintf("ops: %s of consumer ", kind)) {
				t.Errorf("%s with %s: %v", kind, name, err)
			}
		}
	}
	s.expectUntouched(t, 2)
}

// expectUntouched checks that the consumer "c" is at the position and that no operation was
// recorded.
func (s site) expectUntouched(t testing.TB, position int64) {
	t.Helper()
	s.expectProgress(t, position, 0)
	if n := s.count(t, `SELECT count(*) FROM consumer_operations`) + s.count(t, `SELECT count(*) FROM consumer_checkpoints_changes`); n > 0 {
		t.Errorf("%d traces of refused operations", n)
	}
}

func TestNewRefusesInvalidNames(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if _, err := ops.New(nil); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Errorf("a nil database: %v", err)
	}
	for name, c := range map[string]store.Names{
		"ConsumerCheckpoints": {ConsumerCheckpoints: "a b"},
		"ConsumerGapSkips":    {ConsumerGapSkips: `x"; DROP TABLE events; --`},
		"Events":              {Events: "a.b.c"},
	} {
		if _, err := ops.New(s.DB, ops.WithNames(c)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOtherNames(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	names := store.Names{
		Schema: "ops", Prefix: "x_", ConsumerCheckpoints: "progress", Events: "journal.facts", AggregateHeads: "journal.heads",
	}
	o, err := ops.New(d.DB, ops.WithNames(names))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Consumers(t.Context()); !errors.Is(err, migrations.ErrNotApplied) {
		t.Errorf("without tables: %v", err)
	}
	if err := o.Pause(t.Context(), "c", by); !errors.Is(err, migrations.ErrNotApplied) {
		t.Errorf("without tables: %v", err)
	}
	if err := migrations.Apply(t.Context(), d.DB, &migrations.Config{Names: names}); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `INSERT INTO ops.progress (consumer_name, last_position) VALUES ('c', 7)`)
	d.Exec(t, `INSERT INTO journal.facts (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type)
		VALUES (8, 'Order', 'a', 1, gen_random_uuid(), 'Happened')`)
	for _, err := range []error{o.Pause(t.Context(), "c", by), o.SkipEvent(t.Context(), "c", 8, by), o.Reset(t.Context(), "c", 3, by), o.Resume(t.Context(), "c", by)} {
		if err != nil {
			t.Error(err)
		}
	}
	all, err := o.Operations(t.Context(), ops.OperationFilter{Consumer: "c"}, 10)
	if err != nil || len(all) != 4 {
		t.Errorf("%d operations, %v", len(all), err)
	}
	readAll(t, o, 8)
}

// readAll calls every read.
func readAll(t *testing.T, o *ops.Operator, position int64) {
	t.Helper()
	ctx := t.Context()
	if l, err := o.Log(ctx); err != nil || l.Head < position {
		t.Errorf("the log: %+v, %v", l, err)
	}
	if e, err := o.Event(ctx, position); err != nil || e.EventType != "Happened" {
		t.Errorf("the event: %+v, %v", e, err)
	}
	if n, err := o.Next(ctx, "c"); err != nil || len(n) != 1 || n[0].Position == 0 {
		t.Errorf("next: %+v, %v", n, err)
	}
	_, gaps := o.Gaps(ctx, "c", ops.GapFilter{OnlyOpen: true}, 10)
	_, blockers := o.Blockers(ctx, true)
	_, workers := o.Workers(ctx)
	_, stopped := o.StoppedWorkers(ctx)
	_, deadLetters := o.FilterDeadLetters(ctx, "c", ops.DeadLetterFilter{AggregateType: "Order", EventType: "Happened", Error: "o", OlderThan: time.Hour, After: 1}, true, 10)
	if err := errors.Join(gaps, blockers, workers, stopped, deadLetters); err != nil {
		t.Error(err)
	}
}

// The error of a change that ctx cut off says so, with either driver.
func TestCutOff(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 5)
	holder, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback() }()
	if _, err := holder.ExecContext(t.Context(), `SELECT FROM consumer_checkpoints FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for name, db := range map[string]*sql.DB{"pgx": s.DB, "lib/pq": s.OpenPQ(t)} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := operator(t, db).Pause(ctx, "c", by); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// Each operation, refusal and list works with each driver and exec mode.
func TestDrivers(t *testing.T) {
	t.Parallel()
	pools := map[string]func(site) *sql.DB{"lib/pq": func(s site) *sql.DB { return s.OpenPQ(t) }}
	for _, mode := range pgtest.Modes() {
		pools["pgx "+mode.String()] = func(s site) *sql.DB { return s.OpenMode(t, mode) }
	}
	for name, open := range pools {
		t.Run(name, func(t *testing.T) {
			s := full(t, false)
			s.burn(t, 2)        // 6, 7
			s.append(t, "b", 3) // 8 to 10
			s.settle(t, 10)
			s.open(t, 1, 2)
			s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('c', '12345678-0000-0000-0000-000000000000')`)
			db := open(s)
			db.SetMaxOpenConns(1) // an operation needs no second connection
			o, ctx := operator(t, db), t.Context()
			var beyond *ops.NotSettledError
			if err := o.Reset(ctx, "c", 11, by); !errors.As(err, &beyond) || beyond.Settled != 10 {
				t.Errorf("reset: %v", err)
			}
			var notNext *ops.NotNextError
			if err := o.SkipEvent(ctx, "c", 5, by); !errors.As(err, &notNext) || notNext.Next != 1 || notNext.NextID == uuid.Nil {
				t.Errorf("skip: %v", err)
			}
			for i, err := range []error{
				o.Pause(ctx, "c", by), o.RetryDeadLetters(ctx, "c", 1, by), o.DiscardDeadLetter(ctx, "c", 1, by),
				o.SkipEvent(ctx, "c", 1, by), o.SkipEvent(ctx, "c", 3, by), o.Reset(ctx, "c", 9, by), o.Reset(ctx, "c", 1, by),
			} {
				if err != nil {
					t.Errorf("operation %d: %v", i, err)
				}
			}
			all, err := o.Consumers(ctx)
			if err != nil || len(all) != 1 {
				t.Fatalf("%+v, %v", all, err)
			}
			if c := all[0]; c.Name != "c" || c.Position != 1 || c.Revision != 7 || c.Paused == nil || c.Paused.By != by || c.Worker.String()[:8] != "12345678" || c.OpenRanges != 0 || c.DeadLetters != 0 {
				t.Errorf("%+v", c)
			}
			if err := o.Resume(ctx, "c", by); err != nil {
				t.Error(err)
			}
			s.deadLetter(t, 4, "a", 2)
			readAll(t, o, 5)
			if all, err := o.Preview(func(o *ops.Operator) error {
				_, err := o.RetryDeadLettersWhere(ctx, "c", ops.DeadLetterFilter{}, 10, by)
				return err
			}); err != nil || len(all) != 1 {
				t.Errorf("the preview of a retry: %+v, %v", all, err)
			}
			if n, err := o.RetryDeadLettersWhere(ctx, "c", ops.DeadLetterFilter{EventType: "Happened"}, 10, by); err != nil || n != 1 {
				t.Errorf("retried %d, %v", n, err)
			}
			if with, err := o.FilterDeadLetters(ctx, "c", ops.DeadLetterFilter{}, true, 10); err != nil || len(with) != 1 || string(with[0].Payload) != `{}` {
				t.Errorf("with payload: %+v, %v", with, err)
			}
			deadLetters, err := o.DeadLetters(ctx, "")
			if err != nil || len(deadLetters) != 1 || deadLetters[0].Position != 4 || deadLetters[0].EventID == uuid.Nil {
				t.Errorf("%+v, %v", deadLetters, err)
			}
			operations, err := o.Operations(ctx, ops.OperationFilter{Consumer: "c"}, 100)
			if err != nil || len(operations) != 9 {
				t.Errorf("%d operations, %v", len(operations), err)
			}
		})
	}
}

// An operation waits for the batch in flight until its context ends.
func TestWaitsForTheRow(t *testing.T) {
	t.Parallel()
	s := full(t, false)
	batch, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = batch.Rollback() }()
	if _, err := batch.Exec(`UPDATE consumer_checkpoints SET last_position = 4, revision = revision + 1`); err != nil {
		t.Fatal(err)
	}
	waits := func() bool {
		return s.count(t, `SELECT count(*) FROM pg_locks WHERE `+pgtest.Here+` AND NOT granted`) > 0
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	paused := make(chan error, 1)
	go func() { paused <- s.Pause(ctx, "c", by) }()
	await(t, "the pause to wait for the row", waits)
	cancel()
	if err := <-paused; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "running batch") {
		t.Fatalf("a pause beside a batch: %v", err)
	}
	await(t, "the pause to wait no more", func() bool { return !waits() })
	skipped := make(chan error, 1)
	go func() { skipped <- s.SkipEvent(context.Background(), "c", 5, by) }()
	await(t, "the skip to wait for the row", waits)
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-skipped; err != nil {
		t.Fatal(err)
	}
	s.expectProgress(t, 5, 2)
}

// Of two operators who make the same change at once, one gets an error. Every committed change
// is recorded.
func TestConcurrentChangesOfAConsumer(t *testing.T) {
	t.Parallel()
	s := full(t, false)
	const rounds, operators = 10, 4
	for round := range rounds {
		var done atomic.Int64
		var all sync.WaitGroup
		for i := range operators {
			o := operator(t, s.DB)
			all.Go(func() {
				operate := o.Pause
				if round%2 == 1 {
					operate = o.Resume
				}
				err := operate(context.Background(), "c", ops.By{Operator: fmt.Sprint("operator ", i), Reason: fmt.Sprint("round ", round)})
				switch {
				case err == nil:
					done.Add(1)
				case !errors.Is(err, ops.ErrPaused) && !errors.Is(err, ops.ErrNotPaused):
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := done.Load(); n != 1 {
			t.Fatalf("round %d: %d of %d operators did it, want one", round, n, operators)
		}
	}
	_, revision := s.progress(t)
	if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != rounds || revision != rounds {
		t.Errorf("%d operations recorded, revision %d, want %d", n, revision, rounds)
	}
}

// cutConn loses the answer to a COMMIT, or the COMMIT.
type cutConn struct {
	net.Conn
	after *atomic.Bool // the server receives the COMMIT
	sent  atomic.Bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "commit\x00") {
		if !c.after.Load() {
			_ = c.Close()
			return 0, net.ErrClosed
		}
		c.sent.Store(true) // before the write, since another goroutine may read the answer first
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.sent.Load() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// When the answer to COMMIT is lost, the error names the outcome as unknown, and where to
// check.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := full(t, false)
	config, err := pgx.ParseConfig(s.URL)
	if err != nil {
		t.Fatal("the connection string")
	}
	var after atomic.Bool
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		return &cutConn{Conn: c, after: &after}, err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	o := operator(t, db)
	for _, happened := range []bool{false, true} {
		after.Store(happened)
		err := o.Pause(t.Context(), "c", by)
		var unknown *ops.UnknownOutcomeError
		if !errors.As(err, &unknown) || !strings.Contains(err.Error(), fmt.Sprint("number ", unknown.Operation)) {
			t.Fatalf("the answer to COMMIT was lost: %v", err)
		}
		found := false
		await(t, "the server to have ended the transaction", func() bool {
			return s.count(t, `SELECT count(*) FROM pg_locks WHERE `+pgtest.Here+` AND relation = 'consumer_operations'::regclass`) == 0
		})
		all, err := s.Operations(t.Context(), ops.OperationFilter{Consumer: "c"}, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range all {
			found = found || op.ID == unknown.Operation
		}
		if found != happened {
			t.Errorf("COMMIT happened: %v; Operations lists it: %v", happened, found)
		}
	}
}

// The server ends an operation whose connection has died.
func TestServerEndsAnIdleOperation(t *testing.T) {
	t.Parallel()
	s := full(t, false)
	s.Exec(t, `CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		NEW.paused_reason := current_setting('idle_in_transaction_session_timeout'); RETURN NEW; END $$`)
	s.Exec(t, `CREATE TRIGGER spy BEFORE UPDATE ON consumer_checkpoints FOR EACH ROW EXECUTE FUNCTION spy()`)
	if err := s.Pause(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	all, err := s.Consumers(t.Context())
	if err != nil || all[0].Paused.By.Reason != "15s" {
		t.Errorf("within an operation, idle_in_transaction_session_timeout is %+v (%v), want 15s", all[0].Paused, err)
	}
	var outside string
	if s.scan(t, `SHOW idle_in_transaction_session_timeout`, &outside); outside != "0" {
		t.Errorf("afterwards it is %s, want 0", outside)
	}
}

// An operation waits for a batch that holds the consumer's row, whatever lock_timeout the role
// has. If a statement_timeout ends the wait, the error has the remedy.
func TestOperationWaitsBeyondLockTimeout(t *testing.T) {
	t.Parallel()
	s := full(t, false)
	batch, err := s.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer batch.Rollback()
	if _, err := batch.Exec(`SELECT FROM consumer_checkpoints WHERE consumer_name = 'c' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if err := operator(t, s.OpenSet(t, "statement_timeout", "500")).Pause(t.Context(), "c", by); err == nil || !strings.Contains(err.Error(), "raise the statement_timeout of the role") {
		t.Errorf("a statement_timeout: %v", err)
	}
	paused := make(chan error, 1)
	go func() { paused <- operator(t, s.OpenSet(t, "lock_timeout", "100")).Pause(t.Context(), "c", by) }()
	pgtest.AwaitBlockedFor(t, s.DB, 300*time.Millisecond)
	if err := batch.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-paused; err != nil {
		t.Error(err)
	}
}
