// Package testdeps finds the programs that a few tests need beside Go and PostgreSQL. Without such
// a program its tests skip.
//
// go test hides the output of packages that pass. So the summary of skipped tests goes to the
// terminal, or to the end of the file that SKIPPED_TESTS names. A cached result prints no summary.
package testdeps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// Variable names the file to which Summarize appends.
const Variable = "SKIPPED_TESTS"

// Error reports a program that this machine lacks.
type Error struct {
	Program string // as people call it
	Remedy  string
	Found   error // why one that is there does not run; nil: there is none
}

func (e *Error) Error() string {
	if e.Found != nil {
		return fmt.Sprintf("%s does not run on this machine (%v): %s", e.Program, e.Found, e.Remedy)
	}
	return fmt.Sprintf("there is no %s on this machine: %s", e.Program, e.Remedy)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Found }

// Find returns the first of names that runs, or an *Error with the remedy.
// It asks for the version: packages exist whose program only says what else to
// install.
func Find(ctx context.Context, program, remedy string, names ...string) (path string, err error) {
	lacks := &Error{Program: program, Remedy: remedy}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
		if err == nil {
			return path, nil
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		lacks.Found = fmt.Errorf("%s --version: %w %.200s", path, err, first)
	}
	return "", lacks
}

var (
	mu      sync.Mutex
	skipped = map[string]int{} // tests by why
	file    string             // of the summary
)

// Skip skips a test whose err is that a program is missing.
func Skip(t interface {
	Helper()
	Skip(...any)
}, err error) {
	t.Helper()
	if lacks := (*Error)(nil); errors.As(err, &lacks) {
		mu.Lock()
		skipped[lacks.Error()]++
		file = cmp.Or(os.Getenv(Variable), "/dev/tty") // go's cache knows what is asked for during a test only
		mu.Unlock()
		t.Skip(lacks)
	}
}

// Summarize says which tests of this process were skipped, and why. TestMain
// calls it in the end.
func Summarize() {
	mu.Lock()
	defer mu.Unlock()
	if len(skipped) == 0 {
		return
	}
	lines := summary(skipped)
	_, _ = io.WriteString(os.Stderr, lines) // go test shows it with -v
	if f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0); err == nil {
		_, _ = io.WriteString(f, lines)
		_ = f.Close()
	}
}

func summary(skipped map[string]int) string {
	tested := "a package"
	if info, ok := debug.ReadBuildInfo(); ok {
		tested = strings.TrimSuffix(info.Path, ".test")
	}
	var b strings.Builder
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Fprintf(&b, "%d skipped in %s: %s; then: go test -count=1 %s\n", skipped[why], tested, why, tested)
	}
	return b.String()
}
