package mutants

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Root returns the directory of the module.
func Root(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/pgfrontier/worker").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w (run it inside the repository)", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Build builds a command of the module, such as ./cmd/sim, with the change. It
// puts the program, and all that it needs for that, into an empty directory.
func (m Mutant) Build(ctx context.Context, root, dir, command string) (program string, err error) {
	overlay, err := m.Overlay(root, dir)
	if err != nil {
		return "", err
	}
	return build(ctx, root, dir, overlay, command)
}

// ahead is no mistake: in this build the clock of the process is an hour ahead. The file
// is one of Go itself.
var ahead = Mutant{
	Name:    "ahead",
	Mistake: "the clock of the machine is set",
	Edits:   []Edit{{"src/time/time.go", "sec, nsec, mono := runtimeNow()\n\tif mono == 0", "sec, nsec, mono := runtimeNow()\n\tsec += 3600\n\tif mono == 0"}},
}

// BuildAhead builds a command as Build does, whose clock is an hour ahead: for all that
// calls [time.Now], the drivers and the standard library too. That takes a minute
// the first time.
func BuildAhead(ctx context.Context, root, dir, command string) (program string, err error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	overlay, err := ahead.Overlay(strings.TrimSpace(string(out)), dir)
	if err != nil {
		return "", err
	}
	return build(ctx, root, dir, overlay, command)
}

func build(ctx context.Context, root, dir, overlay, command string) (program string, err error) {
	program = filepath.Join(dir, filepath.Base(command))
	// Without symbols, which nobody reads: that links sooner.
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-overlay", overlay, "-o", program, command)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
}
