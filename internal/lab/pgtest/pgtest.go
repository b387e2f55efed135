// Package pgtest gives tests databases of their own on a real PostgreSQL:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		d := pgtest.New(t)
//		d.Exec(t, `INSERT INTO ...`)
//	}
//
// The packages of one go test share a server. The flag -db or DATABASE_URL names another server;
// there, a process that is killed leaves its databases, named pgtest_*.
package pgtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/testdeps"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/migrations"
)

// Patience is how long a test waits for what must come. It only ends what hangs:
// a machine may be slow, and a test that measures time says so.
const Patience = 2 * time.Minute

const startLimit = Patience + time.Minute // with a download

// leakPatience is how long Main waits for goroutines to end. A worker whose
// database is gone keeps the outcomes of its jobs for 15 seconds.
var leakPatience = 30 * time.Second

const urlFlag = "db"

// Main runs the tests, stops the server, says what was skipped for want of a
// program, and exits the process, which fails if goroutines are left.
func Main(m *testing.M) {
	if flag.Lookup(urlFlag) == nil {
		flag.String(urlFlag, "", "connection string of the PostgreSQL to test on (empty: DATABASE_URL, else a server is started)")
	}
	host()
	common.entered, apart.entered = true, true
	// Tests wait for servers most of the time. The command line still decides.
	// More than sixteen at a time would need more connections than the servers allow.
	_ = flag.Set("test.parallel", strconv.Itoa(min(4*runtime.GOMAXPROCS(0), 16)))
	tier.FixSeed()
	code := m.Run()
	if err := errors.Join(common.close(), apart.close()); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	if left := goroutinesLeft(leakPatience); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "pgtest: %d goroutines are left after the tests:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
		code = max(code, 1)
	}
	testdeps.Summarize()
	os.Exit(code)
}

// Server is the server that the databases of this process are on. Other tests
// use it too; one that stops or kills its server wants OwnServer.
func Server(t testing.TB) *embedded.Server {
	t.Helper()
	if err := common.ensureServer(); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return common.server
}

// OwnServer starts a server for this test alone, which may kill it. It is
// stopped in cleanup. The settings are PostgreSQL's, as in embedded.Config.
func OwnServer(t testing.TB, settings map[string]string) *embedded.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	server, err := embedded.Start(ctx, embedded.Config{Own: true, Settings: settings, Pristine: dataDir()})
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return server
}

// common is what the tests of this process share. apart is the server of those
// who must not share one with other packages.
var common, apart = &shared{}, &shared{apart: true}

// shared is a server with a template and the databases of one process.
type shared struct {
	entered bool // Main runs
	apart   bool // not shared with other processes

	serverOnce sync.Once
	serverErr  error // why there is none, which every test says
	server     *embedded.Server
	settings   map[string]string // of a server that is started
	dataDir    string            // that it gets a copy of, "": none
	admin      *sql.DB
	prefix     string // of the names of all databases
	strategy   string // how CREATE DATABASE copies

	events, jobs template // what New and Jobs copy

	mu    sync.Mutex
	count int // of databases so far
}

func (s *shared) ensureServer() error {
	if !s.entered {
		return errors.New("add func TestMain(m *testing.M) { pgtest.Main(m) } to the package: it stops the server")
	}
	s.serverOnce.Do(func() { s.serverErr = s.start() })
	return s.serverErr
}

// start takes the server that is named, or that of the run, or starts one for
// this process.
func (s *shared) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	named := cmp.Or(flag.Lookup(urlFlag).Value.String(), os.Getenv("DATABASE_URL"))
	if r, ok := currentRun(); ok && named == "" && !s.apart {
		if s.server, err = r.join(ctx); err != nil {
			return err
		}
		s.events.name = runTemplate
	}
	s.dataDir = dataDir()
	// Processes that share a server must not meet.
	s.prefix = "pgtest_" + strings.ToLower(rand.Text()[:12]) + "_"
	return s.begin(ctx)
}

// begin starts the server if there is none, and connects to it.
func (s *shared) begin(ctx context.Context) (err error) {
	if s.server == nil {
		s.server, err = embedded.Start(ctx, embedded.Config{URL: flag.Lookup(urlFlag).Value.String(), Settings: s.settings, Pristine: s.dataDir})
		if err != nil {
			return err
		}
	}
	s.admin, err = sql.Open("pgx", s.server.URL(""))
	if err != nil {
		return err
	}
	// Copying a small database file by file is twice as fast as through the
	// log, the default since PostgreSQL 15; before, there was no other way.
	return s.admin.QueryRowContext(ctx,
		`SELECT CASE WHEN current_setting('server_version_num')::int >= 150000 THEN 'STRATEGY file_copy' ELSE '' END`).Scan(&s.strategy)
}

func (s *shared) close() error {
	if s.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	var errs []error
	if s.admin != nil {
		for _, name := range []string{s.events.name, s.jobs.name} {
			if name != "" && name != runTemplate {
				errs = append(errs, s.drop(ctx, name))
			}
		}
		errs = append(errs, s.admin.Close())
	}
	return errors.Join(append(errs, s.server.Stop(ctx))...)
}

// template is a database that others are copies of.
type template struct {
	name string // "": not made yet
	once sync.Once
	err  error
}

// ensure makes a template with the tables of apply, unless the run has it.
func (s *shared) ensure(of *template, name string, apply func(ctx context.Context, db *sql.DB) error) error {
	of.once.Do(func() {
		if of.name == "" {
			of.name = s.prefix + name
			of.err = s.makeTemplate(of.name, apply)
		}
	})
	return of.err
}

func applyEvents(ctx context.Context, db *sql.DB) error {
	cfg := migrations.DefaultConfig()
	return migrations.Apply(ctx, db, &cfg)
}

func applyJobs(ctx context.Context, db *sql.DB) error { return migrations.ApplyJobs(ctx, db, nil) }

func (s *shared) makeTemplate(name string, apply func(ctx context.Context, db *sql.DB) error) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := s.create(ctx, name, pristine); err != nil {
		return err
	}
	db, err := sql.Open("pgx", s.server.URL(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return apply(ctx, db)
}

// pristine is the template to which nobody adds or connects.
const pristine = "template0"

func (s *shared) nextName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return fmt.Sprintf("%s%d", s.prefix, s.count)
}

func (s *shared) create(ctx context.Context, name, template string, options ...string) error {
	_, err := s.admin.ExecContext(ctx, fmt.Sprintf(`CREATE DATABASE %s TEMPLATE %s %s %s`, ident.Quote(name), ident.Quote(template), s.strategy, strings.Join(options, " ")))
	return err
}

func (s *shared) drop(ctx context.Context, name string) error {
	if err := s.rollbackPrepared(ctx, name); err != nil {
		return err
	}
	_, err := s.admin.ExecContext(ctx, fmt.Sprintf(`DROP DATABASE IF EXISTS %s WITH (FORCE)`, ident.Quote(name)))
	return err
}

// rollbackPrepared ends the prepared transactions that a test has left, which
// can be done only from within their database and which even FORCE respects.
func (s *shared) rollbackPrepared(ctx context.Context, name string) error {
	var statements []string
	rows, err := s.admin.QueryContext(ctx, `SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = $1::text`, name)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var statement string
		if err := rows.Scan(&statement); err != nil {
			return err
		}
		statements = append(statements, statement)
	}
	if err := rows.Err(); err != nil || len(statements) == 0 {
		return err
	}
	db, err := sql.Open("pgx", s.server.URL(name))
	if err != nil {
		return err
	}
	for _, statement := range statements {
		_, execErr := db.ExecContext(ctx, statement)
		err = errors.Join(err, execErr)
	}
	return errors.Join(err, db.Close())
}
