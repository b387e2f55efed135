package embedded

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func do(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// standbyOf follows a server until the test ends.
func standbyOf(t *testing.T, s *Server, port int) *Server {
	t.Helper()
	b, err := s.Standby(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// noBackups reports that the binaries cannot make one, and checks that this is
// said.
func noBackups(t *testing.T, s *Server) bool {
	t.Helper()
	if _, err := s.bin.backup(); err == nil {
		return false
	}
	if _, err := s.Standby(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "needs pg_basebackup") {
		t.Errorf("Standby without pg_basebackup: %v", err)
	}
	return true
}

// A standby takes over from a server that is killed, and is followed in its
// turn by one in the old one's place.
func TestStandby(t *testing.T) {
	first := own(t, map[string]string{"wal_level": "replica", "max_wal_senders": "4"})
	if noBackups(t, first) {
		return
	}
	do(t, first.URL(""), `CREATE TABLE kept (i INT)`, `INSERT INTO kept VALUES (1)`)
	second := standbyOf(t, first, 0)
	do(t, first.URL(""), `INSERT INTO kept VALUES (2)`)
	const kept = `SELECT count(*)::text FROM kept`
	eventually(t, "what was written on the first server to be on the second", func() bool { return query(t, second.URL(""), kept) == "2" })

	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	do(t, second.URL(""), `SELECT pg_promote()`, `INSERT INTO kept VALUES (3)`)
	port := first.Port()
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone(t, first)

	third := standbyOf(t, second, port)
	if third.Port() != port || third.URL("") != first.URL("") {
		t.Errorf("the third server is not where the first was")
	}
	eventually(t, "the third server to have everything", func() bool { return query(t, third.URL(""), kept) == "3" })
	if got := query(t, third.URL(""), `SELECT pg_is_in_recovery()::text`); got != "true" {
		t.Error("the third server is no standby")
	}
	for _, s := range []*Server{second, third} {
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		gone(t, s)
	}
}

// A server that was killed is started once more before its files go, to free
// what it shared: not where clients expect it.
func TestStoppedAfterKillNobodyMeetsIt(t *testing.T) {
	s := own(t, nil)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error)
	go func() { stopped <- s.Stop(t.Context()) }()
	for {
		if c, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port()))); err == nil {
			c.Close()
			t.Error("the server was met at its old address")
		}
		select {
		case err := <-stopped:
			if err != nil {
				t.Error(err)
			}
			gone(t, s)
			return
		default:
		}
	}
}

func TestStandbyFails(t *testing.T) {
	s := own(t, nil) // nobody may follow it
	if noBackups(t, s) {
		return
	}
	if _, err := s.Standby(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "max_wal_senders") || strings.Contains(err.Error(), s.password) {
		t.Errorf("Standby: %v", err)
	}
	if n := len(homes(t)); n != 1 {
		t.Errorf("%d homes are there, of one server", n)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Standby(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "cannot be followed") {
		t.Errorf("Standby of a server that was stopped: %v", err)
	}
	nothingLeft(t)
}

func homes(t *testing.T) []os.DirEntry {
	t.Helper()
	all, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A full disk fails what needs room, and what was committed before stays.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		_, err := Start(t.Context(), Config{Own: true, Disk: 64 << 20})
		if err == nil || !strings.Contains(err.Error(), "root") {
			t.Errorf("without root: %v", err)
		}
		nothingLeft(t)
		return
	}
	s, err := Start(t.Context(), Config{Own: true, Disk: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	do(t, s.URL(""), `CREATE TABLE kept (i INT, filler TEXT)`, `INSERT INTO kept VALUES (1)`)
	if err := s.Fill(); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), `INSERT INTO kept SELECT 2, repeat('x', 1000) FROM generate_series(1, 50000)`)
	if err == nil || !strings.Contains(err.Error()+s.Log(), "No space left on device") {
		t.Errorf("on a full disk: %v", err)
	}
	if err := errors.Join(s.Free(), s.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	do(t, s.URL(""), `INSERT INTO kept SELECT 3, repeat('x', 1000) FROM generate_series(1, 50000)`)
	if got := query(t, s.URL(""), `SELECT string_agg(DISTINCT i::text, ',' ORDER BY i::text) FROM kept`); got != "1,3" {
		t.Errorf("kept: %s", got)
	}
	if err := s.Kill(); err != nil { // a disk goes with its server however that ends
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone(t, s)
	for name, err := range map[string]error{"Fill": s.Fill(), "Free": s.Free()} {
		if err == nil || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("%s after Stop: %v", name, err)
		}
	}
}

func TestNoDisk(t *testing.T) {
	s := own(t, nil)
	for name, err := range map[string]error{"Fill": s.Fill(), "Free": s.Free()} {
		if err == nil || !strings.Contains(err.Error(), "no disk of its own") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
