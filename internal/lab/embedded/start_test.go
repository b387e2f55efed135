package embedded

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/tier"
)

func TestStartFailsOnBadSetting(t *testing.T) {
	_, err := Start(t.Context(), Config{Own: true, Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Fatalf("the error does not tell why: %v", err)
	}
	nothingLeft(t)
}

// As root, the server runs as a user who cannot get everywhere.
func TestUnreachableDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		return // the server runs as the one who made the directory
	}
	t.Setenv("TMPDIR", t.TempDir()) // below a directory with mode 0700
	_, err := Start(t.Context(), Config{Own: true})
	if err == nil || !strings.Contains(err.Error(), "permission denied") || !strings.Contains(err.Error(), "set TMPDIR") {
		t.Errorf("the error does not tell what to do: %v", err)
	}
	nothingLeft(t)
}

// Wherever in Start the context ends, nothing is left.
func TestStartCancelled(t *testing.T) {
	reached := map[string]func(home string) bool{
		"at once":       func(string) bool { return true },
		"initdb begins": func(home string) bool { return exists(home, "data/PG_VERSION") },
		"initdb works":  func(home string) bool { return exists(home, "data/base/1/PG_VERSION") },
		"server starts": func(home string) bool { return exists(home, "log") },
		"server runs":   func(home string) bool { return exists(home, "data/postmaster.pid") && exists(home, "log") },
	}
	for name, reached := range reached {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "server") { // after initdb, which has ended
				tier.Long(t, "TestStartCancelled, whose server starts and runs on a copy")
			}
			startCancelled(t, reached, "")
		})
		t.Run(name+" on a copy", func(t *testing.T) { startCancelled(t, reached, pristinePath(t)) })
	}
}

func startCancelled(t *testing.T, reached func(home string) bool, pristine string) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			homes, _ := filepath.Glob(filepath.Join(os.TempDir(), homePrefix+"*"))
			if slices.ContainsFunc(append(homes, "none"), reached) {
				return
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	s, err := Start(ctx, Config{Own: true, Pristine: pristine})
	close(done)
	wg.Wait()
	if err == nil { // it was too late
		err = errors.Join(context.Canceled, s.Stop(t.Context()))
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	nothingLeft(t)
}

// The port is taken between the check and the start.
func TestPortIsTaken(t *testing.T) {
	s := own(t, nil)
	if err := s.process.Load().shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	asked := 0
	err = s.startOnSomePort(t.Context(), func() (int, error) {
		if asked++; asked <= 2 {
			return taken.Addr().(*net.TCPAddr).Port, nil
		}
		return freePort()
	})
	if err != nil || asked != 3 {
		t.Fatalf("after %d ports, want 3: %v", asked, err)
	}
	if got, want := query(t, s.URL(""), `SHOW port`), strconv.Itoa(s.port); got != want {
		t.Errorf("the server listens on %s, the URL says %s", got, want)
	}
}

func TestSaysReady(t *testing.T) {
	file := func(pid, status string) string {
		return strings.Join([]string{pid, "/data", "1700000000", "15432", "", "127.0.0.1", "  1234 5", status, ""}, "\n")
	}
	for text, want := range map[string]bool{
		file("42", "ready   "):       true,
		file("42", "starting"):       false,
		file("41", "ready   "):       false, // of a server that crashed
		"42\n/data\n1700000000\n":    false,
		"":                           false,
		"42\n\n\n\n\n\n\nready   \n": true,
	} {
		if got := saysReady(text, 42); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "PGPORT=1", "PGPASSWORD=x", "DATABASE_URL=y", "LANG=de", "LC_TIME=de", "HOME=/"})
	if want := []string{"PATH=/bin", "HOME=/", "LC_ALL=C"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func exists(parts ...string) bool {
	_, err := os.Stat(filepath.Join(parts...))
	return err == nil
}

func nothingLeft(t *testing.T) {
	t.Helper()
	homes, _ := filepath.Glob(filepath.Join(os.TempDir(), homePrefix+"*"))
	if left := processesIn(os.TempDir()); len(homes) > 0 || len(left) > 0 {
		t.Errorf("left: directories %v, processes %v", homes, left)
	}
}
