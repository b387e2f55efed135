package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// buildWith builds the program in dir with another main.go.
func buildWith(t *testing.T, dir, main string) (binary string) {
	t.Helper()
	temp := t.TempDir()
	replaced := filepath.Join(temp, "main.go")
	if err := os.WriteFile(replaced, []byte(main), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, "main.go"): replaced}})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(temp, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(temp, "program")
	if out, err := exec.Command("go", "build", "-overlay", overlayFile, "-o", binary, dir).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// run starts a program, waits until it has printed all of want, in any order,
// interrupts it, and demands a clean exit.
func run(t *testing.T, binary string, env []string, want ...string) {
	t.Helper()
	lines := make(chan string)
	end := launch(t, binary, env, lines)
	awaitLines(t, lines, want...)
	end()
}

// launch starts a program that prints to lines. end interrupts it, and demands
// a clean exit.
func launch(t *testing.T, binary string, env []string, lines chan<- string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	cmd := exec.CommandContext(ctx, binary)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for printed := bufio.NewScanner(out); printed.Scan(); {
			select {
			case lines <- printed.Text():
			case <-ctx.Done():
			}
		}
	}()
	var once sync.Once
	end = func() {
		once.Do(func() {
			defer cancel()
			_ = cmd.Process.Signal(syscall.SIGINT)
			<-read
			if err := cmd.Wait(); err != nil {
				t.Errorf("after SIGINT the program ended with %v", err)
			}
		})
	}
	t.Cleanup(end)
	return end
}

// awaitLines waits until each of want has been printed once, or a line that
// begins with it, and nothing else.
func awaitLines(t *testing.T, lines <-chan string, want ...string) {
	t.Helper()
	for missing, deadline := slices.Clone(want), time.After(pgtest.Patience); len(missing) > 0; {
		select {
		case line := <-lines:
			at := slices.IndexFunc(missing, func(w string) bool { return strings.HasPrefix(line, w) })
			if at < 0 {
				t.Errorf("printed %q", line)
				continue
			}
			missing = slices.Delete(missing, at, at+1)
		case <-deadline:
			t.Fatalf("the program did not print %q", missing)
		}
	}
}

// The quick start in README.md is a complete program, and prints what the
// README says it prints.
func TestReadmeQuickStart(t *testing.T) {
	t.Parallel()
	binary, output := quickStart(t)
	run(t, binary, []string{"DATABASE_URL=" + pgtest.Empty(t).URL}, output...)
}

// It can be started by two processes at the same time, and again: every order
// is handled once.
func TestReadmeQuickStartTwiceAtOnce(t *testing.T) {
	t.Parallel()
	binary, _ := quickStart(t)
	for range 3 { // races, on an empty database each
		d := pgtest.Empty(t)
		env := []string{"DATABASE_URL=" + d.URL}
		handled := make(chan string)
		first, second := launch(t, binary, env, handled), launch(t, binary, env, handled)
		awaitLines(t, handled, counted(1, 6)...)
		await(t, "two workers", func() bool {
			var workers int
			err := d.DB.QueryRow(`SELECT count(*) FROM worker_nodes`).Scan(&workers)
			return err == nil && workers == 2
		})
		first()
		third := launch(t, binary, env, handled)
		awaitLines(t, handled, counted(7, 9)...)
		second()
		third()
		var orders, cents int
		if err := d.DB.QueryRow(`SELECT orders, cents FROM totals`).Scan(&orders, &cents); err != nil || orders != 9 || cents != 6000 {
			t.Errorf("%d orders of %d cents, %v; want 9 of 6000", orders, cents, err)
		}
	}
}

// counted are the beginnings of what the quick start prints of some orders.
func counted(first, last int) (lines []string) {
	for n := first; n <= last; n++ {
		lines = append(lines, fmt.Sprintf("OrderPlaced: now %d orders,", n))
	}
	return lines
}

// quickStart builds the program of README.md, and returns what it is said to
// print.
func quickStart(t *testing.T) (binary string, output []string) {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(readme), "\n## Quick start\n")
	if !ok {
		t.Fatal("README.md has no section \"Quick start\"")
	}
	dir, err := filepath.Abs("testdata/quickstart") // exists in the overlay only
	if err != nil {
		t.Fatal(err)
	}
	program, printed := block(t, section, "go"), block(t, section, "text")
	return buildWith(t, dir, program), strings.Split(strings.TrimSpace(printed), "\n")
}

// block returns the first code block of a language.
func block(t *testing.T, markdown, language string) string {
	t.Helper()
	_, rest, ok := strings.Cut(markdown, "\n```"+language+"\n")
	code, _, end := strings.Cut(rest, "\n```")
	if !ok || !end {
		t.Fatalf("no code block of language %s", language)
	}
	return code + "\n"
}
