package embedded

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/testdeps"
)

// Each transaction gets a session of the server that is free, so two
// connections that take turns share one.
func TestBouncerPoolsTransactions(t *testing.T) {
	s := own(t, nil)
	b, err := StartBouncer(t.Context(), s.URL(""), nil)
	testdeps.Skip(t, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		if b.process.Running() || exists(b.home.path) {
			t.Error("the proxy or its files are left")
		}
	})
	var sessions []int
	for range 2 {
		cfg, err := pgx.ParseConfig(b.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		var session int
		if err := conn.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&session); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, session)
	}
	if sessions[0] != sessions[1] {
		t.Errorf("the sessions are %v, not the same", sessions)
	}
	stranger := strings.Replace(b.URL("postgres"), b.password, "guessed", 1)
	if conn, err := pgx.Connect(t.Context(), stranger); err == nil {
		conn.Close(context.Background())
		t.Error("one can log in without the password")
	}
}

func TestBouncerTriesAnotherPort(t *testing.T) {
	s := own(t, nil)
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	first := true
	choose := func() (int, error) {
		if first {
			first = false
			_, port, err := net.SplitHostPort(taken.Addr().String())
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(port)
		}
		return freePort()
	}
	b, err := newBouncer(t.Context(), s.URL(""))
	testdeps.Skip(t, err)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.startOnSomePort(t.Context(), choose, nil); err != nil {
		t.Error(err)
	}
	if err := b.Stop(); err != nil {
		t.Error(err)
	}
}

func TestBouncerFailsOnBadSetting(t *testing.T) {
	s := own(t, nil)
	_, err := StartBouncer(t.Context(), s.URL(""), map[string]string{"pool_mode": "none"})
	testdeps.Skip(t, err)
	if err == nil || !strings.Contains(err.Error(), "pool_mode") {
		t.Errorf("the error does not say what is wrong: %v", err)
	}
}
