package browser

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// A newcomer follows what examples/hello prints: skips the event at which a consumer
// stands still, and lets it go on.
func TestHello(t *testing.T) {
	t.Parallel()
	lines := runHello(t)
	site := await(t, lines, `^The console is at (http://\S+)$`)
	page := await(t, lines, `^  1\. Open (\S+)$`)
	b := open(t)
	b.run(t, chromedp.Navigate(site))
	b.until(t, `document.body?.innerText.includes("totals_v1")`)
	b.run(t, chromedp.Navigate(page))
	for _, change := range []string{"skip", "resume"} {
		b.preview(t, `details:has(input[name="kind"][value="`+change+`"])`, "nobody orders less than nothing")
		b.click(t, "button.make")
		b.until(t, `document.body?.innerText.includes("Done: `+change+`")`)
	}
	await(t, lines, `totals_v1: (\d{2,}) orders`)
	b.expectQuiet(t)
}

// runHello runs the example, which starts a server of its own, until the test ends, and
// returns what it prints.
func runHello(t *testing.T) <-chan string {
	t.Helper()
	temp, err := os.MkdirTemp("", "hello-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	if err := os.Chmod(temp, 0o777); err != nil { // root's server runs as another user
		t.Fatal(err)
	}
	program := filepath.Join(temp, "hello")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./examples/hello")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	cmd := exec.CommandContext(ctx, program, "-every", "50ms", "-open=false")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Env = append(os.Environ(), "DATABASE_URL=", "TMPDIR="+temp)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100_000)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(lines)
		for printed := bufio.NewScanner(out); printed.Scan(); {
			lines <- printed.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "context canceled") {
			t.Errorf("the example ended with %v", err)
		}
	})
	return lines
}

// await reads lines up to one that matches a pattern, and returns what its group holds.
func await(t *testing.T, lines <-chan string, pattern string) string {
	t.Helper()
	for line := range lines {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(line); found != nil {
			return found[1]
		}
	}
	t.Fatalf("the example ended without a line that matches %q", pattern)
	return ""
}
