package embedded

import (
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

func TestNamedServer(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://"+closedPort(t))
	there := own(t, nil) // is not the one that is named
	for name, start := range map[string]func() (*Server, error){
		"DATABASE_URL": func() (*Server, error) {
			t.Setenv("DATABASE_URL", there.URL("template1"))
			return Start(t.Context(), Config{})
		},
		"URL wins": func() (*Server, error) {
			t.Setenv("DATABASE_URL", "postgres://"+closedPort(t))
			return Start(t.Context(), Config{URL: there.URL("template1")})
		},
	} {
		s, err := start()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if s.URL("") != there.URL("template1") || s.Version() != there.Version() || s.PID() != 0 || s.Log() != "" {
			t.Errorf("%s: version %q, pid %d, log %q", name, s.Version(), s.PID(), s.Log())
		}
		if got := query(t, s.URL("postgres"), `SELECT current_database()`); got != "postgres" {
			t.Errorf("%s: the URL for postgres leads to %s", name, got)
		}
		if err := s.Kill(); err == nil {
			t.Errorf("%s: Kill touched a server that is not ours", name)
		}
		if err := s.Restart(t.Context()); err == nil {
			t.Errorf("%s: Restart touched a server that is not ours", name)
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Errorf("%s: Stop: %v", name, err)
		}
	}
	query(t, there.URL(""), `SELECT 'still there'`)
	noSecretsInErrors(t, there)
}

func noSecretsInErrors(t *testing.T, there *Server) {
	t.Helper()
	host := strings.SplitAfter(there.URL(""), "@")[1]
	for _, bad := range []string{
		"postgres://postgres:sEcret@" + host, // the wrong password
		"postgres://postgres:sEcret@" + closedPort(t) + "/postgres",
		"postgres://postgres:sEcret/word@" + host,
		"postgres://postgres:sEc%ret@" + host,
		"host=127.0.0.1 port=x password=sEcret",
		"password=sEcret sslmode=never",
		"sEcret",
	} {
		_, err := Start(t.Context(), Config{URL: bad})
		if err == nil {
			t.Errorf("%s was accepted", bad)
		} else if strings.Contains(err.Error(), "sEc") || !strings.Contains(err.Error(), "the server that was named") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// closedPort is a loopback address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Only the database of a connection string changes, whatever it is called.
func TestWithDatabase(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ -~]{1,20}`)
		user, password := word.Draw(t, "user"), word.Draw(t, "password")
		before, after := word.Draw(t, "before"), word.Draw(t, "after")
		quote := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'" }
		u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: "127.0.0.1:5433", Path: "/" + before, RawQuery: "sslmode=disable&application_name=x"}
		conn := rapid.SampledFrom([]string{
			u.String(),
			strings.Replace(u.String(), "postgres:", "postgresql:", 1),
			strings.Replace(u.String(), "/"+strings.TrimPrefix(u.EscapedPath(), "/")+"?", "/?dbname="+url.QueryEscape(before)+"&", 1),
			"host=127.0.0.1 port=5433 sslmode=disable application_name=x user=" + quote(user) + " password=" + quote(password) + " dbname=" + quote(before),
		}).Draw(t, "conn")
		cfg, err := pgx.ParseConfig(conn)
		if err != nil {
			t.Fatalf("the test is wrong: %v", err)
		}
		got, err := pgx.ParseConfig(withDatabase(conn, after))
		if err != nil {
			t.Fatalf("%q for %q: %v", conn, after, err)
		}
		if got.Database != after || got.User != cfg.User || got.Password != cfg.Password || got.Host != cfg.Host || got.Port != cfg.Port ||
			got.TLSConfig != nil || got.RuntimeParams["application_name"] != "x" {
			t.Fatalf("%q for %q became %q", conn, after, withDatabase(conn, after))
		}
		if withDatabase(conn, "") != conn {
			t.Fatal("no database was named, and the string changed")
		}
	})
}
