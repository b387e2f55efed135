package embedded

import (
	"errors"
	"os"
	"path/filepath"
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

// However sweeps and new homes meet, a home that its owner has got stays until
// its owner removes it.
func TestSweepAgainstNewHomes(t *testing.T) {
	const owners, sweepers, rounds = 4, 3, 300
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
	h, err := newHome()
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
