package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// What is typed wrong is said so with status 2, before the database is asked.
func TestWrongUsage(t *testing.T) {
	s := site{env: map[string]string{"DATABASE_URL": "postgres://u:s3cret@127.0.0.1:1/x"}}
	for _, c := range []struct{ line, says string }{
		{"bogus", "bogus"},
		{"status --bogus", "--bogus"},
		{"status stray", "stray"},
		{"status -o yaml", `"yaml": it is table or json`},
		{"status --check --max-age 0s", "above 0"},
		{"status --check -w", "leave -w out"},
		{"status --table event=x", `no table "event"`},
		{"status --timeout -1s", "above 0"},
		{"status --timeout 0s", "above 0"},
		{"status --table events=", "has no name"},
		{"status --every 1ms -w", "at least 100ms"},
		{"status --every 5s", "goes with -w"},
		{"status --max-age 5s", "goes with --check"},
		{"blocked --terminate 0 --reason r", "a prepared transaction does not have"},
		{"jobs show 9223372036854775807", "is no job"},
		{"operations ''", "name is empty"},
		{"top --every 1ms", "at least 100ms"},
		{"top", "needs a terminal"},
		{"top -o json", "needs a terminal"},
		{"console --listen 8080", "host:port"},
		{"console --listen :8080", "other machines reach that"},
		{"console --listen 192.0.2.1:8080", "other machines reach that"},
		{"consumer", "1 arg"},
		{"pause c", "--reason"},
		{"pause c --reason  ", "--reason"},
		{"pause c --reason r --if-revision x", "a number from 0"},
		{"pause c --reason r --if-revision -1", "a number from 0"},
		{"skip c x --reason r", `"x" is no position`},
		{"skip c 0 --reason r", `"0" is no position`},
		{"reset c --to settled", "--reason"},
		{"reset c --reason r", `--to ""`},
		{"reset c --to -1 --reason r", `--to "-1"`},
		{"reset c --to yesterday --reason r", "2026-01-02T15:04:05Z"},
		{"partition c many --reason r", "0 to 256"},
		{"letters", "list, show, retry, discard"},
		{"letters bogus", `no verb "bogus"`},
		{"letters retry c --reason r", "say which dead letters"},
		{"letters retry c 7 --all --reason r", "leave --all"},
		{"letters discard c --all --error x --reason r", "say which dead letters"},
		{"wait c#0-7ff 7", `wait for "c"`},
		{"jobs show x", `"x" is no job`},
		{"jobs list --state lost", `"lost"`},
		{"jobs cancel --reason r", "say which jobs"},
		{"jobs cancel 7 --kind k --reason r", "leave --all"},
		{"jobs cap q few --reason r", "or none"},
		{"jobs flows", "list, show, cancel, retry"},
		{"jobs flows show x", `"x" is no run`},
		{"migrate up --timeout 0s", "above 0"},
		{"migrate sql --format liquibase", "plain, goose or golang-migrate"},
		{"migrate sql --store --jobs", "one at a time"},
		{"migrate sql --table events=a.b.c", `--table: events: "a.b.c"`},
		{"migrate sql --prefix 1_", `"1_" for "--prefix"`},
		{"migrate sql --schema a.b", `"a.b" for "--schema"`},
		{"migrate grants --jobs --writer w", "--writer names no role"},
		{"migrate grants --reader public", "public"},
		{"doctor --max-age 0s", "above 0"},
	} {
		got := s.run(t, split(t, c.line)...)
		if got.code != exitUnable || got.out != "" || !strings.Contains(got.talk, c.says) || strings.Count(got.talk, "\n") != 1 {
			t.Errorf("%s: status %d, printed %q and %q; want 2 and %s on one line", c.line, got.code, got.out, got.talk, c.says)
		}
	}
}

// A database that is not there has status 2, and no password is ever printed.
func TestUnreachable(t *testing.T) {
	for url, says := range map[string]string{
		"postgres://u:s3cret@127.0.0.1:1/x":                                          "does not answer",
		"host=127.0.0.1 port=1 user=u password=s3cret":                               "does not answer",
		"postgres://u:s3cret@host:port/x":                                            "cannot read how to reach",
		"postgres://u:s3cret@[::1/x":                                                 "cannot read how to reach",
		"password=s3cret port=many":                                                  "cannot read how to reach",
		"host=127.0.0.1 password=s3 s3cret":                                          "cannot read how to reach",
		"postgres://u:12/s3cret@127.0.0.1:1/x":                                       "%2F for /",
		"postgres://u:12#s3cret@127.0.0.1:1/x":                                       "%2F for /",
		"postgres://u:12?s3cret@127.0.0.1:1/x":                                       "",
		"postgres://u:12@s3cret@127.0.0.1:1/x":                                       "%40 for @",
		"postgres://u:12@h:1,s3cret@127.0.0.1:1/x":                                   "%40 for @",
		"postgres://u:12@/s3cret@127.0.0.1:1/x":                                      "%40 for @",
		"postgres://u:12@x?s3cret@127.0.0.1:1/x":                                     "",
		"postgres://u:12@x#s3cret@127.0.0.1:1/x":                                     "%40 for @",
		"postgres://u:s3cret@127.0.0.1:1/x?sslmode=no":                               "cannot read how to reach",
		"postgres://u:s3cret@127.0.0.1:1/x?sslrootcert=/nowhere&sslmode=verify-full": "/nowhere",
	} {
		s := site{env: map[string]string{"DATABASE_URL": url}}
		for _, line := range []string{"status", "doctor", "pause c --reason r", "jobs queues", "migrate up", "console --listen 127.0.0.1:0", "__complete pause "} {
			got := s.run(t, strings.Split(line, " ")...)
			if strings.Contains(got.out+got.talk, "s3cret") {
				t.Errorf("%s: %s was printed: %s", line, url, got.talk)
			}
			if line != "__complete pause " {
				got.is(t, exitUnable, says)
			}
		}
	}
}

// A password that the server refuses is not printed either.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	guest, _ := s.login(t, "guest")
	for _, url := range []string{s.as(guest, "wr0ng"), s.as("cli_nobody", "wr0ng")} {
		for _, line := range []string{"status", "doctor", "doctor -o json"} {
			got := site{env: map[string]string{"DATABASE_URL": url}}.run(t, words(line)...)
			if strings.Contains(got.out+got.talk, "wr0ng") {
				t.Errorf("%s: the password was printed: %s%s", line, got.out, got.talk)
			}
		}
	}
	site{env: map[string]string{"DATABASE_URL": s.as("cli_nobody", "wr0ng")}}.expect(t, exitUnable, words("status"), "cli_nobody")
}

// The database is also named by the variables of libpq, and by a service file.
func TestOtherWaysToTheDatabase(t *testing.T) {
	d := pgtest.New(t)
	c, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal("the connection string")
	}
	s := site{d, nil}
	port := strings.TrimSpace(strings.Split(d.URL[strings.LastIndex(d.URL, ":")+1:], "/")[0])
	t.Setenv("PGPASSWORD", c.Password)
	t.Run("variables", func(t *testing.T) {
		t.Setenv("PGHOST", c.Host)
		t.Setenv("PGPORT", port)
		t.Setenv("PGUSER", c.User)
		t.Setenv("PGDATABASE", c.Database)
		s.expect(t, exitDone, words("status"), "no consumer has run yet")
	})
	t.Run("service", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "services")
		text := "[shop]\nhost=" + c.Host + "\nport=" + port + "\nuser=" + c.User + "\ndbname=" + c.Database + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PGSERVICEFILE", file)
		t.Setenv("PGSERVICE", "shop")
		s.expect(t, exitDone, words("status"), "no consumer has run yet")
	})
}

// each calls do for each command.
func everyCommand(c *cobra.Command, do func(c *cobra.Command)) {
	do(c)
	for _, sub := range c.Commands() {
		everyCommand(sub, do)
	}
}

// Each verb says what it does within 80 columns, and has examples that its flags and
// arguments allow.
func TestHelp(t *testing.T) {
	everyCommand((&app{}).root(), func(c *cobra.Command) {
		args := append(words(c.CommandPath())[1:], "-h")
		got := site{}.run(t, args...)
		got.is(t, exitDone, "Usage:")
		for line := range strings.Lines(got.out) {
			if len(line) > 81 {
				t.Errorf("%s -h: wider than 80: %s", c.CommandPath(), line)
			}
		}
		if c.HasSubCommands() {
			return
		}
		if c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			checkLine(t, line)
		}
	})
}

// checkLine demands that a command line would be understood.
func checkLine(t *testing.T, line string) {
	t.Helper()
	args := split(t, line)
	if args[0] != "pgfrontier" {
		t.Errorf("%q is no line of pgfrontier", line)
		return
	}
	root := (&app{}).root()
	c, rest, err := root.Find(args[1:])
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err != nil || c == root {
		t.Errorf("%q: %v", strings.TrimSpace(line), err)
	}
}

// split cuts a line of the shell into words, up to a pipe or a comment.
func split(t *testing.T, line string) (args []string) {
	t.Helper()
	var word strings.Builder
	quote, open := ' ', false // ' ': none is open
	for _, r := range strings.TrimSpace(line) + " " {
		switch {
		case r == quote && r != ' ':
			quote = ' '
		case (r == '"' || r == '\'') && quote == ' ':
			quote, open = r, true
		case r != ' ' || quote != ' ':
			word.WriteRune(r)
		case open || word.Len() > 0:
			if w := word.String(); !open && (w == "|" || w == ">" || w == "#") {
				return args
			}
			args = append(args, word.String())
			word.Reset()
			open = false
		}
	}
	if quote != ' ' {
		t.Errorf("a quote is left open: %s", line)
	}
	return args
}

// An interrupt ends a question, and changes nothing.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 1)
	s.place(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	reached := make(chan struct{})
	defer close(reached)
	got := s.within(ctx, place{asks: true, in: answering{strings.NewReader(""), func() { cancel(); <-reached }}}, words("skip c 1 --reason r")...)
	got.is(t, exitUnable, "interrupted")
	if s.position(t) != 0 {
		t.Error("the event was skipped")
	}
}
