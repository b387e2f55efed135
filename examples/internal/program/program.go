// Package program runs the main of an example in a process of its own, for its test.
package program

import (
	"bufio"
	"context"
	"database/sql"
	"log"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// variable tells a process of the test that it is the example.
const variable = "PGFRONTIER_EXAMPLE"

// limit ends what hangs.
const limit = 2 * time.Minute

// Main runs the tests. In a process that Start has started, it runs the example.
func Main(m *testing.M, main func()) {
	if os.Getenv(variable) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

// Program is an example that runs.
type Program struct {
	cmd   *exec.Cmd
	lines chan string // that it prints; closed at its end
	stop  context.CancelFunc
}

// Start starts the example with more of an environment, and with arguments.
func Start(t testing.TB, env []string, args ...string) *Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), limit)
	p := &Program{cmd: exec.CommandContext(ctx, self, args...), lines: make(chan string, 10_000), stop: stop}
	p.cmd.Env = append(append(os.Environ(), variable+"=1"), env...)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		stop()
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for printed := bufio.NewScanner(out); printed.Scan(); {
			p.lines <- printed.Text()
		}
	}()
	t.Cleanup(func() { p.Interrupt(t) })
	return p
}

// Await reads lines up to one that matches a pattern, and returns what its groups hold.
func (p *Program) Await(t testing.TB, pattern string) []string {
	t.Helper()
	for line := range p.lines {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(line); found != nil {
			return found[1:]
		}
	}
	t.Fatalf("the example has ended without a line that matches %q", pattern)
	return nil
}

// Interrupt ends the example as Ctrl-C does, and demands that it ends without an error.
func (p *Program) Interrupt(t testing.TB) {
	t.Helper()
	if p.cmd.ProcessState != nil {
		return
	}
	defer p.stop()
	_ = p.cmd.Process.Signal(syscall.SIGINT) // or it has ended
	for range p.lines {
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("after an interrupt the example has ended with: %v", err)
	}
}

// Run runs an example in an Example, on a database of its own.
func Run(run func(ctx context.Context, db *sql.DB) error) {
	t, drop := pgtest.Example()
	defer drop()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := run(ctx, pgtest.Empty(t).DB); err != nil {
		log.Panic(err)
	}
}
