package embedded

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestSweep(t *testing.T) {
	dir := reachableDir(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	elsewhere := reachableDir(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	mkhome := func(name string, files ...string) {
		t.Helper()
		must(os.MkdirAll(filepath.Join(path(name), "data"), 0o700))
		for _, file := range files {
			must(os.WriteFile(filepath.Join(path(name), file), nil, 0o600))
		}
	}
	mkhome("pgfrontier-1-dead", lockName, "log", "data/PG_VERSION")
	mkhome("pgfrontier-1-living", lockName)
	lock, err := lockFile(filepath.Join(path("pgfrontier-1-living"), lockName), 0)
	must(err)
	defer lock.Close()
	must(os.Mkdir(path("pgfrontier-1-begun"), 0o700)) // or swept but for the last step
	mkhome("pgfrontier-unlocked", "data/kept")        // not one of ours
	mkhome("another-1-dead", lockName)
	must(os.WriteFile(path("pgfrontier-1-file"), nil, 0o600))
	must(os.Symlink(elsewhere, path("pgfrontier-1-link")))
	must(os.WriteFile(filepath.Join(elsewhere, lockName), nil, 0o600))
	mkhome("pgfrontier-1-foreign", lockName)
	if os.Geteuid() == 0 {
		must(os.Chown(path("pgfrontier-1-foreign"), 65534, 65534))
	} else {
		must(os.Remove(filepath.Join(path("pgfrontier-1-foreign"), lockName)))
	}

	sweep(dir)
	for name, want := range map[string]bool{
		"pgfrontier-1-dead":    false,
		"pgfrontier-1-living":  true,
		"pgfrontier-1-begun":   false,
		"pgfrontier-unlocked":  true,
		"another-1-dead":       true,
		"pgfrontier-1-file":    true,
		"pgfrontier-1-link":    true,
		"pgfrontier-1-foreign": true,
	} {
		if got := exists(path(name)); got != want {
			t.Errorf("%s is there: %v, want %v", name, got, want)
		}
	}
	if !exists(elsewhere, lockName) {
		t.Error("the sweep went through a symbolic link")
	}
}

// A server that has outlived its owner is ended by the sweep, but not what else
// happens to run in its directory.
func TestSweepEndsServer(t *testing.T) {
	path := filepath.Join(reachableDir(t), "pgfrontier-1-dead")
	data := filepath.Join(path, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	endServer, endShell := idle(t, "postgres", data), idle(t, "shell", data)
	sweep(filepath.Dir(path))
	if exists(path) {
		t.Error("the directory is still there")
	}
	if err := endServer(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("the server was not killed: %v", err)
	}
	if err := endShell(); err != nil {
		t.Errorf("the shell did not live on: %v", err)
	}
}

// idle starts a process that does nothing until it is told to end, which
// returns how it ended.
func idle(t *testing.T, name, dir string) (end func() error) {
	t.Helper()
	cmd := exec.Command(executable(t, name))
	cmd.Env = append(os.Environ(), roleVariable+"=idler")
	cmd.Dir = dir
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = sync.OnceValue(func() error {
		stdin.Close()
		return cmd.Wait()
	})
	t.Cleanup(func() { _ = end() })
	return end
}

// A lock on a file that a sweep has removed meanwhile is worth nothing.
func TestLockOfRemovedFile(t *testing.T) {
	path := filepath.Join(reachableDir(t), lockName)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := lockHeld(f); err != nil {
		t.Errorf("the file is there: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := lockHeld(f); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was removed: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := lockHeld(f); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another file has its name: %v", err)
	}
}

// However sweeps and new homes meet, a home that its owner has got stays until
// its owner removes it.
func TestSweepAgainstNewHomes(t *testing.T) {
	const owners, sweepers, rounds = 3, 2, 50
	stop := make(chan struct{})
	var making, sweeping sync.WaitGroup
	for range sweepers {
		sweeping.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					sweep(os.TempDir())
				}
			}
		})
	}
	for range owners {
		making.Go(func() {
			for range rounds {
				if err := useHome(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	making.Wait()
	close(stop)
	sweeping.Wait()
	nothingLeft(t)
}

func useHome() error {
	h, err := newHome(os.TempDir())
	if err != nil {
		return err
	}
	if err := os.Mkdir(h.data(), 0o700); err != nil {
		return err
	}
	if _, err := lockFile(filepath.Join(h.path, lockName), 0); !errors.Is(err, errInUse) {
		return errors.New("a home that its owner holds is not locked")
	}
	return h.remove()
}
