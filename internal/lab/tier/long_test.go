package tier_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runner runs tools/long in a repository of its own, with steps of a test.
type runner struct {
	t   *testing.T
	dir string
}

func newRunner(t *testing.T, steps ...string) runner {
	t.Helper()
	script, err := os.ReadFile("../../../tools/long")
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range [][]string{{"bash", "-c", "((BASH_VERSINFO[0] >= 5))"}, {"git", "version"}} {
		if out, err := exec.Command(tool[0], tool[1:]...).CombinedOutput(); err != nil {
			t.Skipf("tools/long needs git and bash 5: %v: %v %s", tool, err, out)
		}
	}
	r := runner{t, t.TempDir()}
	if err := os.Mkdir(filepath.Join(r.dir, "tools"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "tools/long"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	r.write("steps", strings.Join(steps, "\n")+"\n")
	r.write(".gitignore", "/.long/\n/ran\n/go\n")
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}} {
		if out, err := exec.Command("git", append([]string{"-C", r.dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v %s", args, err, out)
		}
	}
	return r
}

func (r runner) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r runner) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), filepath.Join(r.dir, "tools/long"), args...)
	cmd.Env = append(os.Environ(), "LONG_STEPS=steps")
	return cmd
}

// run runs tools/long to its end. The output must have all of want.
func (r runner) run(status int, want []string, args ...string) (output string) {
	r.t.Helper()
	cmd := r.command(args...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != status {
		r.t.Fatalf("tools/long %q: exit status %d, want %d:\n%s", args, got, status, out)
	}
	for _, w := range want {
		if !strings.Contains(squeeze(string(out)), w) {
			r.t.Errorf("tools/long %q lacks %q:\n%s", args, w, out)
		}
	}
	return string(out)
}

// squeeze makes one space of several.
func squeeze(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

// ran returns the steps that ran, in order.
func (r runner) ran() string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "ran"))
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

func TestLongRunGoesOnAfterAnInterrupt(t *testing.T) {
	r := newRunner(t,
		`first echo first >>ran`,
		`second echo second >>ran; [ -e go ] || sleep 300 | cat`,
		`third echo third >>ran`)
	cmd := r.command()
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if text, _ := os.ReadFile(filepath.Join(r.dir, "ran")); strings.Contains(string(text), "second") {
			break
		}
		if time.Now().After(deadline) {
			t.Error("the second step did not begin")
			break
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	<-ended
	if status := cmd.ProcessState.ExitCode(); status != 130 || !strings.Contains(squeeze(out.String()), "second interrupted ") || !strings.Contains(squeeze(out.String()), "third not run -") {
		t.Errorf("interrupted: exit status %d:\n%s", status, out.String())
	}
	r.write("go", "")
	r.run(0, []string{"first green echo", "second echo"}, "-n")
	r.run(0, []string{"first ok, before", "second ok ", "third ok "})
	if got, want := r.ran(), "first second second third"; got != want {
		t.Errorf("steps that ran: %s, want %s", got, want)
	}
	r.run(0, []string{"third ok, before"}, "third")
	r.run(0, nil, "-again", "third")
	if got, want := r.ran(), "first second second third third"; got != want {
		t.Errorf("steps that ran: %s, want %s", got, want)
	}
}

func TestLongRunTellsHowToRepeatAFailure(t *testing.T) {
	r := newRunner(t,
		`campaign printf 'verdict: BROKEN: order\nrepeat:  go run ./cmd/sim -seed 7\n'; exit 3`,
		`tests printf -- '--- FAIL: TestA (0.00s)\n--- FAIL: TestB (0.00s)\nFAIL\tworker/jobs\t1s\n'; false ./...`,
		`mutants echo ' head NOT CAUGHT in 40 runs'; false ./cmd/mutants`,
		`lacks echo 1 skipped in a: there is no PgBouncer >>"$SKIPPED_TESTS"`,
		`last echo last >>ran`)
	r.run(1, []string{
		"campaign FAILED (3)", "repeat: go run ./cmd/sim -seed 7\n",
		"tests FAILED (1)", "\nprintf -- '--- FAIL: TestA (0.00s)\\n", "false -run '^(TestA|TestB)$' worker/jobs\n",
		"mutants FAILED (1)", "go run ./cmd/mutants -only head\n",
		"lacks SKIPPED", "\n1 skipped in a: there is no PgBouncer\n",
		"last ok ",
	})
	r.run(1, []string{"campaign FAILED (3)", "last ok, before"}) // what failed runs again
	for _, arg := range []string{"nothing", "-nothing"} {
		r.run(2, []string{arg}, arg)
	}
}

func TestLongRunKeepsNothingOfOtherSources(t *testing.T) {
	r := newRunner(t, "first echo first >>ran", "second echo second >>ran; [ -e go ] || echo >source", "third echo third >>ran")
	r.run(1, []string{"second not known", "third not run", "the sources changed during the run"})
	r.write("go", "")
	r.run(0, []string{"first ok ", "second ok ", "third ok "})
	if got, want := r.ran(), "first second first second third"; got != want {
		t.Errorf("steps that ran: %s, want %s", got, want)
	}
}
