package embedded

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// spoilable copies the pristine directory, for a test that spoils it.
func spoilable(t *testing.T) *home {
	t.Helper()
	h := &home{path: filepath.Join(reachableDir(t), "home")}
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", pristinePath(t), h.path).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return h
}

// startOn starts a server that a copy of the directory is asked for.
func startOn(t *testing.T, path string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Config{Own: true, Pristine: path})
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// identifier returns the system identifier of a data directory, which initdb
// draws. Copies have the same.
func identifier(t *testing.T, data string) string {
	t.Helper()
	control, err := os.ReadFile(filepath.Join(data, "global", "pg_control"))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", control[:8])
}

// files lists what is in a directory, with sizes, owners, modes and times.
func files(t *testing.T, dir string) (list []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			list = append(list, fmt.Sprint(path, info.Size(), info.Mode(), info.ModTime(), ownedByUs(path)))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// Servers start on copies at the same time, each with a password of its own, and
// leave the directory as it was.
func TestCopiesOfAPristineDirectory(t *testing.T) {
	path := pristinePath(t)
	before := files(t, path)
	servers := make([]*Server, 3)
	var wg sync.WaitGroup
	for i := range servers {
		wg.Go(func() { servers[i] = startOn(t, path) })
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	identifiers, passwords := map[string]bool{}, map[string]bool{}
	for i, s := range servers {
		identifiers[identifier(t, s.home.data())], passwords[s.password] = true, true
		passwordIsNeeded(t, s)
		cfg, err := pgx.ParseConfig(s.URL(""))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Password = servers[(i+1)%len(servers)].password
		if conn, err := pgx.ConnectConfig(t.Context(), cfg); err == nil {
			conn.Close(t.Context())
			t.Error("the password of another copy opened the server")
		}
		do(t, s.URL(""), `CREATE TABLE mine (i INT)`) // fails if another server has the same files
	}
	if len(identifiers) != 1 || len(passwords) != len(servers) {
		t.Errorf("%d servers have %d system identifiers, want 1, and %d passwords", len(servers), len(identifiers), len(passwords))
	}
	if !slices.Equal(files(t, path), before) {
		t.Error("the pristine directory has changed")
	}
}

// Only a complete copy for the same programs counts.
func TestSpoiledPristineDirectoryIsNotUsed(t *testing.T) {
	bin, who, err := programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	path := os.Getenv("PATH")
	for name, c := range map[string]struct {
		spoil func(t *testing.T, h *home)
		used  bool
	}{
		"not spoiled":    {func(*testing.T, *home) {}, true},
		"other programs": {func(t *testing.T, h *home) { replaceOrigin(t, h, bin.version, bin.version+".1") }, false},
		"half written":   {func(t *testing.T, h *home) { replaceOrigin(t, h, "}", "") }, false},
		"removed":        {func(t *testing.T, h *home) { must(t, removeHome(h.path)) }, false},
		"removed before it is copied": {func(t *testing.T, h *home) {
			must(t, os.Chmod(h.path, 0o777))
			script := "#!/bin/sh\nrm -rf " + h.origin() + "\nPATH=" + path + " exec cp \"$@\"\n"
			dir := reachableDir(t)
			must(t, os.WriteFile(filepath.Join(dir, "cp"), []byte(script), 0o755))
			t.Setenv("PATH", dir+":"+path)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := spoilable(t)
			c.spoil(t, h)
			s, copied := &Server{bin: bin, who: who, root: os.TempDir()}, false
			_, err := s.settle(func() error {
				_, copied = s.copyPristine(t.Context(), h.path)
				return nil
			})
			must(t, err)
			must(t, s.home.remove())
			if copied != c.used {
				t.Errorf("copied: %v, want %v", copied, c.used)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func replaceOrigin(t *testing.T, h *home, from, to string) {
	t.Helper()
	text, err := os.ReadFile(h.origin())
	must(t, err)
	must(t, os.WriteFile(h.origin(), []byte(strings.Replace(string(text), from, to, 1)), 0o600))
}

// Start runs initdb where copying has failed half way.
func TestStartAfterHalfACopy(t *testing.T) {
	h := spoilable(t)
	must(t, os.Chmod(filepath.Join(h.data(), "PG_VERSION"), 0))
	s := startOn(t, h.path)
	if s == nil {
		return
	}
	passwordIsNeeded(t, s)
	if identifier(t, s.home.data()) == identifier(t, h.data()) {
		t.Error("the server runs on a part of a copy")
	}
}

// A home is not complete from the first step of its removal on.
func TestOriginIsRemovedFirst(t *testing.T) {
	h := &home{path: reachableDir(t)}
	must(t, os.MkdirAll(filepath.Join(h.origin(), "cannot be removed"), 0o700))
	must(t, os.Mkdir(h.data(), 0o700))
	if err := removeHome(h.path); err == nil || !exists(h.data()) {
		t.Errorf("the data is there: %v, %v", exists(h.data()), err)
	}
}
