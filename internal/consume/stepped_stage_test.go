package consume

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/history"
)

// quantum is the move of the clock in one step. After it, everything is due that a frontier
// waits for between two statements. It is far longer than a script takes, so the server's
// running clock decides nothing.
const quantum = time.Minute

// stage is the environment in which a script is played.
type stage struct {
	t      *rapid.T
	ctx    context.Context
	server *steppedServer
	script script
	seen   map[string]int // number of occurrences by name, in all scripts

	history *history.History
	lives   []string // tokens of the incarnations, by first appearance

	own      *sql.DB // for the script's own statements and the writers'
	writers  [3]writer
	prepared []*writer
	gids     int
	txs      int // transactions begun
	workers  [2]*steppedWorker
	owner    map[string]*shared // by consumer

	published []*frontier.Value // all values of this incarnation
	committed int64             // events in the log
	events    uint32            // events ever made
	faults    int               // faults after which statements may fail
	resets    map[string]int
}

func newStage(t *rapid.T, server *steppedServer, script script, seen map[string]int) *stage {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s := &stage{t: t, ctx: ctx, server: server, script: script, seen: seen, history: history.New(time.Now()),
		lives: []string{""}, owner: map[string]*shared{}, resets: map[string]int{}}
	s.record("", "", history.RunBegan, history.Header{Workers: len(s.workers), Writers: len(s.writers), Consumers: []string{"all", "some"}})
	s.record("", "", drawnScript, script.settings())
	s.openOwn()
	s.end(`pid <> pg_backend_pid() AND backend_type = 'client backend'`) // of earlier scripts
	t.Cleanup(func() { s.own.Close() })
	for i := range s.workers {
		s.workers[i] = s.newWorker(fmt.Sprintf("worker %d", i), i%2 == 1)
	}
	s.prepareTables()
	for i := range s.workers {
		for range 4 { // it opens, writes a token, and reads it
			s.stepFrontier(i, 0)
		}
	}
	return s
}

// prepareTables removes the state of earlier scripts and assigns all consumers to the first
// worker. It commits synchronously, so no crash loses it.
func (s *stage) prepareTables() {
	conn, err := pgx.Connect(s.ctx, s.server.URL(""))
	s.must(err)
	defer conn.Close(s.ctx)
	rows, err := conn.Query(s.ctx, `SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts`)
	s.must(err)
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.must(err)
	statements = append(statements, `
TRUNCATE events, aggregate_heads, consumer_assignments, consumer_checkpoints, consumer_checkpoints_settled,
	consumer_checkpoints_token, consumer_gap_skips, ledger RESTART IDENTITY`)
	for _, l := range s.workers[0].loops {
		s.owner[l.unit()] = l.c.w
		statements = append(statements,
			fmt.Sprintf(`INSERT INTO consumer_checkpoints (consumer_name, last_position, scope) VALUES ('%s', 0, '%s')`, l.unit(), l.c.unit.scope),
			fmt.Sprintf(`INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('%s', '%s')`, l.unit(), l.c.w.id))
	}
	for _, statement := range statements {
		_, err := conn.Exec(s.ctx, statement)
		s.must(err)
	}
}

func (s *stage) config(name, lockTimeout string) *pgx.ConnConfig {
	cfg, err := pgx.ParseConfig(s.server.URL(""))
	s.must(err)
	cfg.RuntimeParams["application_name"] = name
	cfg.RuntimeParams["lock_timeout"] = lockTimeout
	if s.script.old {
		cfg.RuntimeParams["search_path"] = "later, public, pg_catalog"
	}
	if s.script.async {
		cfg.RuntimeParams["synchronous_commit"] = "off"
	}
	return cfg
}

// keptConns is enough for a pool to keep every connection that it ever opens. Opening a
// connection takes longer than most statements.
const keptConns = 8

func (s *stage) openOwn() {
	s.own = stdlib.OpenDB(*s.config("script", "1ms")) // the script never waits for a lock
	s.own.SetMaxIdleConns(keptConns)
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// exec runs one of the script's own statements.
func (s *stage) exec(query string, args ...any) {
	s.t.Helper()
	if _, err := s.own.ExecContext(s.ctx, query, args...); err != nil {
		s.t.Fatalf("%v, in\n%s", err, query)
	}
}

// number runs one of the script's own queries.
func (s *stage) number(query string, args ...any) (n int64) {
	s.t.Helper()
	if err := s.own.QueryRowContext(s.ctx, query, args...).Scan(&n); err != nil {
		s.t.Fatalf("%v, in\n%s", err, query)
	}
	return n
}

// end terminates backends and waits until they are gone.
func (s *stage) end(which string, args ...any) {
	s.t.Helper()
	for s.number(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE `+which, args...) > 0 {
	}
}

// saw counts an occurrence that the scripts must include.
func (s *stage) saw(what string) { s.seen[what]++ }

// takeOver assigns a consumer to the worker that does not own it. The worker may begin at
// once.
func (s *stage) takeOver(who, what int) {
	loops := s.loops()
	l := loops[who%len(loops)]
	for s.owner[l.unit()] == l.c.w {
		who++
		l = loops[who%len(loops)]
	}
	s.give(l)
	if what%3 > 0 {
		s.advance(l, true)
		s.finishStep(l)
	}
}

// give assigns a consumer to the worker of a loop.
func (s *stage) give(l *loop) {
	s.exec(`UPDATE consumer_assignments SET worker_id = $2::uuid, updated_at = clock_timestamp() WHERE consumer_name = $1::text`,
		l.unit(), l.c.w.id.String())
	s.owner[l.unit()] = l.c.w
	s.record(l.worker, l.unit(), assigned, nil)
}

// reset sets a consumer and its ledger back, as operators do, unless a batch locks its
// checkpoint.
func (s *stage) reset(who, what int) {
	loops := s.workers[0].loops
	unit := loops[who%len(loops)].unit()
	at := s.number(`SELECT last_position FROM consumer_checkpoints WHERE consumer_name = $1::text`, unit)
	to := max(at-int64(1+what%12), 0)
	operator, err := ops.New(s.own)
	s.must(err)
	err = operator.Reset(s.ctx, unit, to, ops.By{Operator: "the script", Reason: "it says so"})
	if errors.Is(err, ops.ErrUnchanged) || pgdriver.SQLState(err) == "55P03" { // lock_timeout
		return
	}
	s.must(err)
	s.exec(`DELETE FROM ledger WHERE consumer = $1::text AND position > $2::bigint`, unit, to)
	s.resets[unit]++
	s.saw("reset")
	s.record("", unit, wasReset, to)
}

// keepUp makes a worker's consumers handle new events at once, twice. So the consumers
// share the frontier's read of new events, unless a position is missing.
func (s *stage) keepUp(who, what int) {
	for i := range s.writers {
		if w := &s.writers[i]; what%3 > 0 && w.tx != nil && w.reserved == 0 {
			s.endWriter(w, true)
		}
	}
	s.pollFrontier(who, what)
	for range 2 {
		s.supply(what)
		s.pollFrontier(who, what)
		for _, l := range s.workers[who%len(s.workers)].loops {
			if s.owner[l.unit()] == l.c.w {
				s.exhaust(l)
			}
		}
	}
}

// supply commits new events, unless their writer holds a reserved position.
func (s *stage) supply(what int) {
	s.append(2, what)
	if w := s.writer(2); w.tx != nil && w.reserved == 0 {
		s.endWriter(w, true)
	}
}
