package consume

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// steppedServer is a server that scripts kill. A goroutine outside the scripts' bubbles
// does everything that takes real time.
type steppedServer struct {
	*embedded.Server
	errands   chan func() error
	results   chan error
	walWriter int // its pid
}

func newSteppedServer(t *testing.T) *steppedServer {
	s := &steppedServer{
		Server: pgtest.OwnServer(t, map[string]string{
			"max_prepared_transactions": "64",
			"autovacuum":                "off",
			// Nothing may run at a time of its own. It could decide what a crash loses, or
			// seem to be a transaction.
			"bgwriter_lru_maxpages":           "0",
			"checkpoint_timeout":              "1d",
			"max_wal_size":                    "10GB",
			"max_logical_replication_workers": "0",
		}),
		errands: make(chan func() error),
		results: make(chan error),
	}
	go func() {
		for do := range s.errands {
			s.results <- do()
		}
	}()
	t.Cleanup(func() { close(s.errands) })
	db, err := sql.Open("pgx", s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	cfg := migrations.DefaultConfig()
	if err := migrations.Apply(t.Context(), db, &cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(createLedger + createLater); err != nil {
		t.Fatal(err)
	}
	if err := s.freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(s.walWriter, syscall.SIGCONT) }) // so that the server can stop
	return s
}

// freeze stops the process that would write asynchronous commits to disk at some time. So
// it is certain what a crash loses. The process is stopped while it sleeps: awake it may
// hold a lock that every commit needs.
func (s *steppedServer) freeze(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL(""))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	asleep := func() (pid int, err error) {
		err = conn.QueryRow(ctx, `
SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE backend_type = 'walwriter' AND wait_event = 'WalWriterMain'`).Scan(&pid)
		return pid, err
	}
	for {
		pid, err := asleep()
		if err != nil {
			return err
		}
		if pid == 0 {
			continue
		}
		s.walWriter = pid
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		if pid, err = asleep(); err != nil || pid == s.walWriter {
			return err
		}
		if err := syscall.Kill(s.walWriter, syscall.SIGCONT); err != nil { // it woke up before it stopped
			return err
		}
	}
}

// outside runs do outside the bubble.
func (s *steppedServer) outside(do func() error) error {
	s.errands <- do
	return <-s.results
}

// crash kills the server and starts it again.
func (s *steppedServer) crash() error {
	return s.outside(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return errors.Join(s.Kill(), s.Restart(ctx), s.freeze(ctx))
	})
}

// crashOf kills one backend, after which the server ends all others. It returns when the
// server is back.
func (s *steppedServer) crashOf(backend int) error {
	return s.outside(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		witness, err := pgx.Connect(ctx, s.URL(""))
		if err != nil {
			return err
		}
		for _, pid := range []int{backend, s.walWriter} { // the stopped WAL writer would not receive the server's signal to end
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
		}
		_, _ = witness.WaitForNotification(ctx) // until the connection ends
		for {
			err := s.freeze(ctx)
			if err == nil || ctx.Err() != nil {
				return err
			}
			time.Sleep(time.Millisecond) // the server is recovering
		}
	})
}

const createLedger = `CREATE TABLE ledger (
	id BIGSERIAL PRIMARY KEY, consumer TEXT NOT NULL, position BIGINT NOT NULL, event_id UUID NOT NULL, late BOOL NOT NULL)`

// createLater creates a clock in the search path by which every transaction began long ago.
const createLater = `;
CREATE SCHEMA later;
CREATE FUNCTION later.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + interval '1 day' $$`

// steppedConsumer writes its events into the ledger.
type steppedConsumer struct {
	name  string
	types []string
	fails *atomic.Bool // fails the next time
}

var errScripted = errors.New("as the script says")

func (c steppedConsumer) Name() string             { return c.name }
func (c steppedConsumer) AggregateTypes() []string { return c.types }

func (c steppedConsumer) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	info, _ := consumer.Info(ctx)
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position, event_id, late) VALUES ($1, $2, $3, $4)`,
		c.name, e.GlobalPosition, e.EventID.String(), info.Late)
	if t, ok := ctx.Value(threadKey{}).(*thread); ok {
		t.notes.add(eventHandled, handled{e.GlobalPosition, info.Late})
	}
	if err == nil && c.fails.CompareAndSwap(true, false) {
		err = errScripted
	}
	return err
}
