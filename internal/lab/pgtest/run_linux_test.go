package pgtest_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// asGoTest runs a shell script as a process that is called go.
func asGoTest(t *testing.T, script string) (out string) {
	t.Helper()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "go")
	if err := os.Symlink(shell, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-c", script)
	cmd.Env = append(os.Environ(), "DATABASE_URL=", "TESTS="+os.Args[0])
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return string(text)
}

// TestSaysURL tells TestProcessesOfARunShareAServer which server it was on.
func TestSaysURL(t *testing.T) {
	pgtest.New(t).Exec(t, `SELECT * FROM events`)
	t.Logf("url %s", pgtest.Server(t).URL(""))
}

func TestProcessesOfARunShareAServer(t *testing.T) {
	const tests = `"$TESTS" -test.v -test.run '^TestSaysURL$'`
	out := asGoTest(t, tests+" & "+tests+" && wait && "+tests)
	urls := regexp.MustCompile(`url (\S+)`).FindAllStringSubmatch(out, -1)
	if len(urls) != 3 || urls[0][1] != urls[1][1] || urls[1][1] != urls[2][1] {
		t.Fatalf("three processes of a run did not share a server:\n%s", out)
	}
	if own := pgtest.Server(t).URL(""); own == urls[0][1] {
		t.Error("another run shares the server of this one")
	}
	awaitGone(t, urls[0][1])
}

// TestSaysIdentifiers tells TestServersOfARunAreCopies the system identifiers of
// three servers.
func TestSaysIdentifiers(t *testing.T) {
	for _, url := range []string{pgtest.New(t).URL, pgtest.Alone(t).URL, pgtest.OwnServer(t, nil).URL("")} {
		t.Logf("identifier %d", count(t, open(t, url), `SELECT system_identifier FROM pg_control_system()`))
	}
}

// initdb draws an identifier, so servers with the same one are copies.
func TestServersOfARunAreCopies(t *testing.T) {
	out := asGoTest(t, `"$TESTS" -test.v -test.run '^TestSaysIdentifiers$'`)
	found := regexp.MustCompile(`identifier \d+`).FindAllString(out, -1)
	if len(found) != 3 || len(slices.Compact(found)) != 1 {
		t.Errorf("three servers of a run are no copies of one data directory:\n%s", out)
	}
}

// A server that has died is replaced for the processes that come later.
func TestServerOfARunIsReplaced(t *testing.T) {
	const tests = `"$TESTS" -test.v -test.run '^TestSaysURL$'`
	const kill = `for p in $(grep -lzx PGTEST_HOST=$$ /proc/[0-9]*/environ 2>/dev/null); do
		p=${p%/environ}
		kill -9 ${p#/proc/}
	done`
	out := asGoTest(t, tests+"\n"+kill+"\n"+tests)
	urls := regexp.MustCompile(`url (\S+)`).FindAllStringSubmatch(out, -1)
	if len(urls) != 2 || urls[0][1] == urls[1][1] {
		t.Fatalf("the second process did not get another server:\n%s", out)
	}
	awaitGone(t, urls[0][1])
	awaitGone(t, urls[1][1])
}

// awaitGone waits until a server has ended.
func awaitGone(t *testing.T, url string) {
	t.Helper()
	for deadline := time.Now().Add(pgtest.Patience); ; time.Sleep(5 * time.Millisecond) {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return
		}
		_ = conn.Close(context.Background())
		if time.Now().After(deadline) {
			t.Fatal("the server outlives its run")
		}
	}
}

func TestDirectoryOfARunIsRemoved(t *testing.T) {
	out := asGoTest(t, `"$TESTS" -test.run '^TestSaysURL$' && ls -d "${TMPDIR:-/tmp}/pgtest-$$-"*`)
	dir := regexp.MustCompile(`\S*/pgtest-\d+-\d+`).FindString(out)
	if dir == "" {
		t.Fatalf("the run has no directory:\n%s", out)
	}
	for deadline := time.Now().Add(pgtest.Patience); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s outlives its run", dir)
		}
	}
}
