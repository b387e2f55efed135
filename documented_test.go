package worker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/pgtest"
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, line := range want {
		missing[line] = true
	}
	for lines := bufio.NewScanner(out); len(missing) > 0 && lines.Scan(); {
		delete(missing, lines.Text())
	}
	if len(missing) > 0 {
		t.Errorf("the program ended without printing %v", missing)
	}
	_ = cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGINT the program ended with %v", err)
	}
}

// The quick start in README.md is a complete program, and prints what the
// README says it prints.
func TestReadmeQuickStart(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(readme), "\n## Quick start\n")
	if !ok {
		t.Fatal("README.md has no section \"Quick start\"")
	}
	program := block(t, section, "go")
	output := block(t, section, "text")
	dir, err := filepath.Abs("testdata/quickstart") // exists in the overlay only
	if err != nil {
		t.Fatal(err)
	}
	d := pgtest.Empty(t)
	run(t, buildWith(t, dir, program), []string{"DATABASE_URL=" + d.URL}, strings.Split(strings.TrimSpace(output), "\n")...)
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
