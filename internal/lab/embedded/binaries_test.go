package embedded

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCandidates(t *testing.T) {
	packaged := []string{"/p/10/bin", "/p/15/bin", "/p/9.6/bin", "/p/17/bin", "/p/other/bin"}
	newestFirst := []string{"/p/17/bin", "/p/15/bin", "/p/10/bin", "/p/9.6/bin", "/p/other/bin"}
	for name, test := range map[string]struct {
		path     string
		packaged []string
		without  []string // these hold no server
		want     []string
	}{
		"nothing":                 {},
		"packaged, newest first":  {packaged: packaged, want: newestFirst},
		"PATH in its order first": {path: "/b:/a", packaged: packaged, want: append([]string{"/b", "/a"}, newestFirst...)},
		"each once":               {path: "/p/15/bin:/a:/a", packaged: []string{"/p/17/bin", "/p/15/bin"}, want: []string{"/p/15/bin", "/a", "/p/17/bin"}},
		"only with a server":      {path: "/a:/b", packaged: packaged[:2], without: []string{"/a", "/p/15/bin"}, want: []string{"/b", "/p/10/bin"}},
		"only absolute ones":      {path: ":.:bin:/a", want: []string{"/a"}},
	} {
		got := candidates(test.path, test.packaged, func(dir string) bool { return !slices.Contains(test.without, dir) })
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestHasServer(t *testing.T) {
	dir := reachableDir(t)
	program := func(name string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	program("postgres", 0o755)
	if hasServer(dir) {
		t.Error("without initdb")
	}
	program("initdb", 0o644)
	if hasServer(dir) {
		t.Error("initdb cannot be executed")
	}
	if err := os.Chmod(filepath.Join(dir, "initdb"), 0o755); err != nil {
		t.Fatal(err)
	}
	if !hasServer(dir) {
		t.Error("both are there")
	}
}

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]string{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": "15.18",
		"postgres (PostgreSQL) 13.0\n":                           "13.0",
		"postgres (PostgreSQL) 19beta1\n":                        "19beta1",
	} {
		if got, err := parseVersion(out); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", out, got, err, want)
		}
	}
	for out, want := range map[string]string{
		"postgres (PostgreSQL) 12.22\n":  "PostgreSQL 12.22 is older than 13",
		"postgres (PostgreSQL) 9.6.24\n": "PostgreSQL 9.6.24 is older than 13",
		"psql (PostgreSQL) 15.1\n":       `"psql (PostgreSQL) 15.1", which names no version`,
		"":                               "names no version",
	} {
		if got, err := parseVersion(out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v; want the error %q", out, got, err, want)
		}
	}
}

// serverDir makes a directory whose postgres is that shell script.
func serverDir(t *testing.T, script string) string {
	t.Helper()
	dir := reachableDir(t)
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// When nothing can be had, the error tells everything that was tried, each with
// its reason, and what can be done.
func TestFindNothing(t *testing.T) {
	who, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	broken := serverDir(t, "echo no libpq here >&2; exit 3")
	old := serverDir(t, "echo 'postgres (PostgreSQL) 12.1'")
	hidden := serverDir(t, "echo 'postgres (PostgreSQL) 15.1'")
	if err := os.Chmod(filepath.Join(hidden, "postgres"), 0o100); err != nil {
		t.Fatal(err)
	}
	from := sources{
		path:     broken,
		packaged: []string{old, hidden},
		archive:  archive{cache: filepath.Join(reachableDir(t), "cache"), repository: "http://" + closedPort(t)},
	}
	_, err = find(t.Context(), who, from)
	if err == nil {
		t.Fatal("found")
	}
	for _, want := range []string{
		broken + ": exit status 3", "no libpq here",
		old + ": PostgreSQL 12.1 is older than 13",
		hidden + ": ", "ermission denied", // says the kernel, or the shell
		"download: unable to connect to " + from.archive.repository,
		"apt-get install postgresql", "-db or DATABASE_URL", "let the download through",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
	_, err = find(t.Context(), who, sources{archive: from.archive})
	if want := "no directory of PATH and no /usr/lib/postgresql/*/bin has both initdb and postgres"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error lacks %q:\n%v", want, err)
	}
}

// What cannot be used is passed over.
func TestFindNext(t *testing.T) {
	who, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	broken, good := serverDir(t, "exit 1"), serverDir(t, "echo 'postgres (PostgreSQL) 17.2'")
	bin, err := find(t.Context(), who, sources{path: broken + ":" + good})
	if err != nil || bin.dir != good || bin.version != "17.2" {
		t.Errorf("found %+v, %v; want %s", bin, err, good)
	}
}
