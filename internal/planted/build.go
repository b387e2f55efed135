package planted

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Root returns the directory of the module.
func Root(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w (run it inside the module)", err)
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
	program = filepath.Join(dir, filepath.Base(command))
	// Without symbols, which nobody reads: that links sooner.
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-overlay", overlay, "-o", program, command)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
}
