// Package pgtest gives tests databases of their own on a real PostgreSQL, one
// server per test process:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		d := pgtest.New(t)
//		d.Exec(t, `INSERT INTO ...`)
//	}
//
// The server is started for the process, or is the one that the test flag -db
// or the environment's DATABASE_URL names.
package pgtest

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/embedded"
	"github.com/pgfrontier/worker/migrations"
)

const (
	startLimit = 3 * time.Minute // a download included
	stepLimit  = 30 * time.Second
)

// main is what the tests of this process share.
var main shared

type shared struct {
	entered bool // Main runs

	mu       sync.Mutex
	err      error // why there is no server; kept, so that every test says it at once
	server   *embedded.Server
	admin    *sql.DB
	template string // empty until it is made
	made     int    // databases so far
	prefix   string
}

// Main runs the tests, stops the server and exits. The process fails if a
// goroutine is left.
func Main(m *testing.M) {
	if flag.Lookup("db") == nil {
		flag.String("db", "", "connection string of a PostgreSQL to test on (default: DATABASE_URL, else a server of its own)")
	}
	main.entered = true
	code := m.Run()
	if err := main.close(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	if left := waitForGoroutines(10 * time.Second); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "pgtest: %d goroutines are left after the tests:\n\n", len(left))
		for _, stack := range left {
			fmt.Fprintf(os.Stderr, "%s\n\n", stack)
		}
		code = max(code, 1)
	}
	os.Exit(code)
}

// Server is the server that the databases of this process are on. Other tests
// use it too: one that stops or kills its server starts one with OwnServer.
func Server(t testing.TB) *embedded.Server {
	t.Helper()
	server, err := main.get()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return server
}

// OwnServer starts a server for this test alone, which may kill it. It is
// stopped in cleanup. The settings are PostgreSQL's own, as in
// embedded.Config.
func OwnServer(t testing.TB, settings map[string]string) *embedded.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	server, err := embedded.Start(ctx, embedded.Config{Own: true, Settings: settings})
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return server
}

// get returns the server, which the first caller starts.
func (s *shared) get() (*embedded.Server, error) {
	if !s.entered {
		return nil, fmt.Errorf("the package needs func TestMain(m *testing.M) { pgtest.Main(m) }, which stops the server")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil && s.err == nil {
		s.err = s.start()
	}
	return s.server, s.err
}

func (s *shared) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	server, err := embedded.Start(ctx, embedded.Config{URL: flag.Lookup("db").Value.String()})
	if err != nil {
		return err
	}
	admin, err := sql.Open("pgx", server.URL(""))
	if err != nil {
		return fmt.Errorf("%w, and stopping the server: %v", err, server.Stop(ctx))
	}
	s.server, s.admin, s.prefix = server, admin, uniquePrefix()
	return nil
}

func (s *shared) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	var errs []error
	if s.template != "" {
		errs = append(errs, s.drop(ctx, s.template))
	}
	errs = append(errs, s.admin.Close(), s.server.Stop(ctx))
	return joined(errs)
}

// applied makes the template at the first call and returns its name.
func (s *shared) applied() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.template != "" {
		return s.template, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	name := s.prefix + "template"
	if err := s.create(ctx, name, "template1"); err != nil {
		return "", err
	}
	if err := applyTables(ctx, s.server.URL(name)); err != nil {
		return "", err
	}
	s.template = name
	return name, nil
}

func applyTables(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	cfg := migrations.DefaultConfig()
	return migrations.Apply(ctx, db, &cfg)
}
