package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// asCommand makes a process of this test program the command.
const asCommand = "PGFRONTIER_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	if text := os.Getenv(asDeployed); text != "" {
		deployed(text)
	}
	pgtest.Main(m)
}

const patience = pgtest.Patience

// await polls until done holds.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	if !pgtest.Poll(done) {
		t.Fatalf("waited in vain for: %s", what)
	}
}

// site is a database with the library's tables, and the command on it.
type site struct {
	*pgtest.Database
	env map[string]string
}

func newSite(t testing.TB) site {
	t.Helper()
	return at(pgtest.New(t))
}

func at(d *pgtest.Database) site {
	return site{d, map[string]string{"DATABASE_URL": d.URL, "PGFRONTIER_OPERATOR": "ann"}}
}

// outcome is what a run of the command left.
type outcome struct {
	code      int
	out, talk string
}

// run runs the command where nobody answers.
func (s site) run(t testing.TB, args ...string) outcome {
	t.Helper()
	return s.in(t, place{}, args...)
}

// ask runs the command before a person who types an answer.
func (s site) ask(t testing.TB, answer string, args ...string) outcome {
	t.Helper()
	return s.in(t, place{in: strings.NewReader(answer + "\n"), asks: true}, args...)
}

func (s site) in(t testing.TB, p place, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	return s.within(ctx, p, args...)
}

func (s site) within(ctx context.Context, p place, args ...string) outcome {
	var out, talk bytes.Buffer
	p.out, p.talk, p.getenv = &out, &talk, func(key string) string { return s.env[key] }
	if p.in == nil {
		p.in = strings.NewReader("")
	}
	code := run(ctx, args, p)
	return outcome{code, out.String(), talk.String()}
}

// expect runs the command and demands a status and words in what it prints, on
// whichever of the two ways.
func (s site) expect(t testing.TB, code int, args []string, words ...string) outcome {
	t.Helper()
	got := s.run(t, args...)
	got.is(t, code, words...)
	return got
}

func (o outcome) is(t testing.TB, code int, words ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("status %d, want %d\n%s%s", o.code, code, o.out, o.talk)
	}
	for _, w := range words {
		if !strings.Contains(o.out+o.talk, w) {
			t.Errorf("does not say %q:\n%s%s", w, o.out, o.talk)
		}
	}
}

// data reads what -o json printed.
func (o outcome) data(t testing.TB) (data map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(o.out), &data); err != nil || data["version"] != 1.0 || strings.Count(o.out, "\n") != 1 {
		t.Fatalf("%v: status %d, printed %s%s", err, o.code, o.out, o.talk)
	}
	return data
}

// value reads one value.
func value[T any](t testing.TB, s site, query string, args ...any) (v T) {
	t.Helper()
	if err := s.DB.QueryRowContext(context.Background(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%v, in\n%s", err, query)
	}
	return v
}

// place gives the consumer "c" a checkpoint, by hand.
func (s site) place(t testing.TB, position int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', $1)
		ON CONFLICT (consumer_name) DO UPDATE SET last_position = excluded.last_position`, position)
}

func (s site) position(t testing.TB) int64 {
	t.Helper()
	return value[int64](t, s, `SELECT last_position FROM consumer_checkpoints WHERE consumer_name = 'c'`)
}

// settle writes the settled row as a frontier would.
func (s site) settle(t testing.TB, position int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_checkpoints_settled (log, settled)
		SELECT ('events_global_position_seq'::regclass::oid::bigint << 32) | pg_relation_filenode('events_global_position_seq')::bigint, $1::bigint
		ON CONFLICT (log) DO UPDATE SET settled = excluded.settled`, position)
}

// letter records a dead letter of the consumer "c".
func (s site) letter(t testing.TB, position int64, aggregate, failure string) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		SELECT 'c', $1, aggregate_type, $2, event_id, event_type, $3, 2 FROM events WHERE global_position = $1`, position, aggregate, failure)
}

func newStore() *storepostgres.Store {
	return storepostgres.NewStore(storepostgres.DefaultStoreConfig())
}

// begin appends n events of one aggregate and leaves the transaction open.
func (s site) begin(t testing.TB, aggregate string, n int) *sql.Tx {
	t.Helper()
	tx, err := s.DB.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	events := make([]store.Event, n)
	for i := range events {
		events[i] = store.Event{AggregateType: "Order", AggregateID: aggregate, EventType: "OrderPlaced", EventID: uuid.New(), Payload: []byte(`{"cents": 5}`)}
	}
	if _, err := newStore().Append(context.Background(), tx, store.Any(), events); err != nil {
		t.Fatal(err)
	}
	return tx
}

func (s site) append(t testing.TB, n int) {
	t.Helper()
	if err := s.begin(t, "a", n).Commit(); err != nil {
		t.Fatal(err)
	}
}

// counter is the consumer "c". It fails at events of the aggregate "bad".
type counter struct{}

func (counter) Name() string { return "c" }

func (counter) Handle(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	if e.AggregateID == "bad" {
		return errors.New("cannot handle this")
	}
	return nil
}

// work runs a worker until the test ends.
func (s site) work(t testing.TB, opts ...worker.Option) {
	t.Helper()
	s.workWith(t, counter{}, opts...)
}

func (s site) workWith(t testing.TB, c consumer.Consumer, opts ...worker.Option) {
	t.Helper()
	w := worker.New(s.DB, newStore(), []consumer.Consumer{c}, append([]worker.Option{
		worker.WithPollInterval(5 * time.Millisecond), worker.WithMaxPollInterval(20 * time.Millisecond),
		worker.WithHeartbeatInterval(100 * time.Millisecond), worker.WithHeartbeatTimeout(time.Minute),
	}, opts...)...)
	done := make(chan error, 1)
	go func() { done <- w.Start(context.Background()) }()
	t.Cleanup(func() {
		w.Stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the worker ended with: %v", err)
			}
		case <-time.After(patience):
			t.Errorf("waited in vain for the worker to stop")
		}
	})
}

// answering does something before it answers.
type answering struct {
	io.Reader
	before func()
}

func (a answering) Read(p []byte) (int, error) {
	a.before()
	return a.Reader.Read(p)
}

// again answers something after the same has happened once more.
func (a answering) again(answer string) answering {
	return answering{strings.NewReader(answer + "\n"), a.before}
}

func words(line string) []string { return strings.Fields(line) }

// as is the connection string for another role.
func (s site) as(role, password string) string {
	scheme, rest, _ := strings.Cut(s.URL, "://")
	_, place, _ := strings.Cut(rest, "@")
	return scheme + "://" + role + ":" + password + "@" + place
}
