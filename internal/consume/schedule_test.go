package consume

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// mood is how a handler treats an event, at each try.
type mood string

const (
	fine      mood = "fine"
	fails     mood = "fails"
	panics    mood = "panics"
	hangs     mood = "hangs"      // until BatchTimeout has passed
	swallows  mood = "swallows"   // the error of a statement, which aborts the transaction
	breaksOff mood = "breaks off" // closes the connection
	deferred  mood = "deferred"   // fails in the commit
)

var moods = []mood{fails, fails, fails, fails, panics, panics, hangs, swallows, swallows, deferred, deferred}

// moody is a consumer that acts a schedule of failures.
type moody struct {
	name  string
	moods map[int64][]mood // by position, one for each try; later tries succeed
	names bool             // the error names the failing event of a whole batch
}

func (m *moody) Name() string { return m.name }

func (m *moody) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	mood := fine
	if left := m.moods[e.GlobalPosition]; len(left) > 0 {
		mood, m.moods[e.GlobalPosition] = left[0], left[1:]
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position, aggregate) VALUES ($1, $2, $3)`, m.name, e.GlobalPosition, e.AggregateID)
	if err != nil {
		return err
	}
	switch mood {
	case fails:
		return errors.New("as scheduled")
	case panics:
		panic("as scheduled")
	case hangs:
		<-ctx.Done()
		return ctx.Err()
	case swallows:
		_, _ = tx.ExecContext(ctx, `SELECT 1 / 0`)
	case breaksOff:
		_, _ = tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
	case deferred:
		_, err = tx.ExecContext(ctx, `INSERT INTO child VALUES (1)`)
	}
	return err
}

// moodyBulk is a moody consumer that handles whole batches.
type moodyBulk struct{ *moody }

func (m moodyBulk) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	for i, e := range events {
		if err := m.Handle(ctx, tx, e); err != nil && m.names {
			return &consumer.EventError{Index: i, Err: err}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// For any failures of handlers and any policy: every event is handled once, in order within
// its aggregate. The events are also in order altogether, except dead deadLetters. A longer
// search:
//
//	go test -run TestSchedulesOfFailures . -rapid.checks=10000 -timeout 2h
func TestSchedulesOfFailures(t *testing.T) {
	tier.Checks(t, 12, 500)
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, consumer TEXT, position BIGINT, aggregate TEXT)`)
	d.Exec(t, `CREATE INDEX ON ledger (consumer)`)
	d.Exec(t, `CREATE TABLE parent (id INT PRIMARY KEY)`)
	d.Exec(t, `CREATE TABLE child (id INT REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	operator, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	s := &scheduled{db: d.DB, ops: operator}
	first := s.worker(t, "first")
	s.frontier = first
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- first.frontier.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	rapid.Check(t, s.check)
}

// scheduled is shared by all schedules: a log, and a frontier over it.
type scheduled struct {
	db       *sql.DB
	ops      *ops.Operator
	frontier *Worker // the worker of the shared frontier
	n        int
}

func (s *scheduled) worker(t interface{ Fatal(...any) }, name string, opts ...option) *Worker {
	w := newWorker(s.db, storepostgres.NewStore(nil), []consumer.Consumer{&moody{name: name}}, append([]option{
		func(c *Config) { c.PollInterval = time.Millisecond }, func(c *Config) { c.MaxPollInterval = 2 * time.Millisecond }, func(c *Config) { c.BatchTimeout = 100 * time.Millisecond },
		func(c *Config) { c.DispatcherInterval = time.Millisecond },
	}, opts...)...)
	if s.frontier != nil {
		w.id = s.frontier.id
	}
	if err := w.prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (s *scheduled) check(t *rapid.T) {
	s.n++
	m := &moody{name: fmt.Sprint("c", s.n), moods: map[int64][]mood{}}
	policy := rapid.SampledFrom([]FailurePolicy{FailStop, FailPause, FailDeadLetter}).Draw(t, "policy")
	after := s.begin(t, m)
	head := s.append(t, after, rapid.IntRange(1, 12).Draw(t, "events"))
	for p := after + 1; p <= head; p++ {
		if rapid.IntRange(0, 2).Draw(t, "calm") == 0 {
			if rapid.IntRange(0, 30).Draw(t, "cut") == 0 { // the recovery takes long
				m.moods[p] = []mood{breaksOff}
				continue
			}
			m.moods[p] = rapid.SliceOfN(rapid.SampledFrom(moods), 1, 4).Draw(t, fmt.Sprint("moods at ", p-after))
		}
	}
	var c consumer.Consumer = m
	if rapid.Bool().Draw(t, "bulk") {
		m.names = rapid.Bool().Draw(t, "names it")
		c = moodyBulk{m}
	}
	opts := []option{
		func(c *Config) { c.FailurePolicy = policy },
		func(c *Config) { c.BatchSize = rapid.IntRange(1, 8).Draw(t, "batch size") },
		func(c *Config) { c.MaxConsecutiveFailures = rapid.IntRange(1, 4).Draw(t, "failures") },
	}
	s.run(t, c, head, opts)
	s.judge(t, m, after, head, policy != FailDeadLetter)
}

// begin registers a consumer that starts at the head, and returns the head.
func (s *scheduled) begin(t *rapid.T, m *moody) (head int64) {
	if err := s.db.QueryRow(`
WITH placed AS (
	INSERT INTO consumer_checkpoints (consumer_name, last_position) SELECT $1::text, coalesce(max(global_position), 0) FROM events RETURNING last_position
), assigned AS (
	INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ($1::text, $2::uuid)
)
SELECT last_position FROM placed`, m.name, s.frontier.id.String()).Scan(&head); err != nil {
		t.Fatal(err)
	}
	return head
}

// append appends events to two aggregates, and waits until Safe includes them.
func (s *scheduled) append(t *rapid.T, after int64, n int) (head int64) {
	es := storepostgres.NewStore(nil)
	for range n {
		tx, err := s.db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		aggregate := fmt.Sprint(s.n, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "aggregate"))
		if _, err = es.Append(context.Background(), tx, store.Any(), []store.Event{{
			AggregateType: "T", AggregateID: aggregate, EventID: uuid.New(), EventType: "E", EventVersion: 1, Payload: []byte("{}"),
		}}); err == nil {
			err = tx.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	head = after + int64(n)
	f, timeout := s.frontier.frontier, time.After(pgtest.Patience)
	for {
		changed := f.Changed()
		if f.Wake(); f.Value().Safe >= head {
			return head
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("awaited that position %d is safe, it is %d", head, f.Value().Safe)
		}
	}
}

// run runs the consumer in one worker after another, until it is at the head and no dead
// letter is left.
func (s *scheduled) run(t *rapid.T, c consumer.Consumer, head int64, opts []option) {
	ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
	defer cancel()
	by := ops.By{Operator: "test", Reason: "as scheduled"}
	var story []string // the calls are sequential
	for {
		intake, stop := context.WithCancel(ctx)
		w := s.worker(t, c.Name(), append(opts, func(c *Config) {
			c.Observers = append(c.Observers, observe.On(func(i observe.ConsumerPaused) {
				story = append(story, "paused: "+i.Reason)
				stop()
			}),
				observe.On(func(b observe.BatchDone) {
					story = append(story, fmt.Sprintf("%+v", b))
					// A commit that exceeds its time may still happen. Then no further
					// report follows.
					if b.Err == nil && !b.Overtaken && b.To >= head || b.Err != nil && b.Commit > 0 {
						stop()
					}
				}))
		})...)
		w.frontier = s.frontier.frontier
		u, err := unitOf(c)
		if err != nil {
			t.Fatal(err)
		}
		loop := newLoop(&w.shared, u)
		loop.status = &unitStatus{}
		// The error is FailStop's, and the next round acts as the next process.
		err = loop.run(ctx, intake)
		stop()
		if ctx.Err() != nil {
			t.Fatalf("awaited that %s comes to %d: %v\n%s", c.Name(), head, err, strings.Join(story, "\n"))
		}
		if err := s.ops.Resume(ctx, c.Name(), by); err != nil && !errors.Is(err, ops.ErrUnchanged) {
			t.Fatal(err)
		}
		deadLetters, err := s.ops.DeadLetters(ctx, c.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range deadLetters {
			if err := s.ops.RetryDeadLetters(ctx, c.Name(), l.Position, by); err != nil {
				t.Fatal(err)
			}
		}
		p, err := w.checkpoints.Load(ctx, s.db, c.Name())
		if err != nil {
			t.Fatal(err)
		}
		if p.Position == head && len(deadLetters) == 0 {
			return
		}
	}
}

func (s *scheduled) judge(t *rapid.T, m *moody, after, head int64, ordered bool) {
	rows, err := s.db.Query(`SELECT position, aggregate FROM ledger WHERE consumer = $1 ORDER BY id`, m.name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var all []int64
	latest := map[string]int64{}
	for rows.Next() {
		var position int64
		var aggregate string
		if err := rows.Scan(&position, &aggregate); err != nil {
			t.Fatal(err)
		}
		if position < latest[aggregate] {
			t.Errorf("position %d was handled after %d of the same aggregate", position, latest[aggregate])
		}
		latest[aggregate] = position
		all = append(all, position)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if ordered && !slices.IsSorted(all) {
		t.Errorf("out of order: %v", all)
	}
	slices.Sort(all)
	var want []int64
	for p := after + 1; p <= head; p++ {
		want = append(want, p)
	}
	if !slices.Equal(all, want) {
		t.Errorf("handled %v, want %v", all, want)
	}
}
