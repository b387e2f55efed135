//go:build unix

package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"html"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/testdeps"
	"github.com/pgfrontier/worker/sim/history"
)

// Some of the faults of the simulation, as they are counted.
const (
	delayed   history.Fault = "commits delayed"
	prepared  history.Fault = "transactions prepared"
	moved     history.Fault = "consumers moved away in a batch"
	lockEnded history.Fault = "backends ended, with a worker's or the leader's lock"
)

// recorded is the history of two seconds in which something of each kind
// happens.
func recorded() *history.History {
	var all []history.Record
	put := func(at float64, who, consumer string, kind history.Kind, about any) {
		all = append(all, history.Record{N: len(all) + 1, At: at, Who: who, Consumer: consumer, Kind: kind, About: about})
	}
	put(0, "", "", history.RunBegan, history.Header{Seed: 1, Workers: 2, Writers: 2, Consumers: []string{"all-1", "some-1", "parts-1"}})
	put(0.1, "worker 1.1", "", history.WorkerBegan, history.Life{ID: "a"})
	put(0.1, "worker 1.1", "", history.Leads, nil)
	put(0.2, "worker 1.1", "all-1", history.Owns, nil)
	put(0.2, "writer 1", "", history.Begin, history.Transaction{Tx: 1, Fault: delayed})
	put(0.3, "writer 2", "", history.Begin, history.Transaction{Tx: 1, Fault: prepared})
	put(0.4, "writer 2", "", history.PreparedToEnd, history.Transaction{Tx: 1, Fault: prepared, Positions: []history.Span{{First: 3, Last: 4}}})
	put(0.5, "", "", history.Sampled, history.Sample{Head: 9, Lag: 9, Checkpoints: map[string]int64{"all-1": 0}})
	put(0.6, "worker 1.1", "", history.FrontierBlocked, history.Blocker{Holder: "3/1", Application: "sim writer 1", State: "idle in transaction"})
	put(0.7, "worker 1.1", "all-1", history.BatchEnded, history.Batch{Outcome: history.BatchCommitted, Attempt: 1, Events: 5, To: 9, First: 5, Last: 9, GuardMS: 10, HandleMS: 50, CommitMS: 2})
	put(0.7, "worker 1.1", "all-1", history.GapSkipped, history.Gap{Span: history.Span{First: 1, Last: 2}, Missing: 2, State: "open"})
	put(0.8, "writer 1", "", history.Committed, history.Transaction{Tx: 1, Fault: delayed, Positions: []history.Span{{First: 1, Last: 2}}})
	put(0.9, "worker 1.1", "all-1", history.BatchEnded, history.Batch{Outcome: history.BatchCommitted, Attempt: 1, Events: 2, Late: 2, From: 9, To: 9, First: 1, Last: 2, HandleMS: 30})
	put(0.9, "worker 1.1", "all-1", history.GapSkipped, history.Gap{Span: history.Span{First: 1, Last: 2}, Missing: 2, State: "late"})
	put(1.0, "writer 2", "", history.RolledBack, history.Transaction{Tx: 1, Fault: prepared, Positions: []history.Span{{First: 3, Last: 4}}})
	put(1.1, "worker 1.1", "all-1", history.FaultInjected, history.Injection{Fault: moved, Where: "to worker 2.1"})
	put(1.2, "worker 1.1", "", history.FaultInjected, history.Injection{Fault: history.Stalls, Where: "in the middle of a batch"})
	put(1.3, "worker 1.1", "all-1", history.BatchEnded, history.Batch{Outcome: history.BatchFailed, Attempt: 1, Events: 1, HandleMS: 40, Error: `</script><script>throw "escaped"</script><!--`})
	put(1.4, "worker 1.1", "", history.FaultOver, history.Injection{Fault: history.Stalls})
	put(1.4, "worker 1.1", "all-1", history.GapSkipped, history.Gap{Span: history.Span{First: 3, Last: 4}, Missing: 2, State: "void"})
	put(1.45, "worker 1.1", "", history.FaultInjected, history.Injection{Fault: history.ServerCrashes, Where: history.InBatch})
	put(1.45, "worker 1.1", "", history.FaultInjected, history.Injection{Fault: history.Cuts, Where: history.InBatch})
	put(1.46, "worker 1.1", "", history.FaultInjected, history.Injection{Fault: lockEnded, Where: history.InBatch})
	put(1.5, "worker 1.1", "all-1", history.OwnsNoMore, nil)
	put(1.55, "worker 1.1", "", history.FaultOver, history.Injection{Fault: history.ServerCrashes})
	put(1.6, "", "", history.FaultsOver, nil)
	put(1.7, "", "", history.Sampled, history.Sample{Head: 9, Lag: 0, Checkpoints: map[string]int64{"all-1": 9}})
	put(1.75, "worker 1.1", "parts-1", history.UnitsReplaced, history.Rescaled{From: []string{"parts-1"}, To: []string{"parts-1#000-7ff", "parts-1#800-fff"}, Position: 9})
	put(1.76, "worker 1.1", "parts-1#000-7ff", history.Owns, nil)
	put(1.8, "worker 1.1", "parts-1#000-7ff", history.BatchEnded, history.Batch{Outcome: history.BatchCommitted, Attempt: 1, Events: 1, HandleMS: 20})
	put(1.9, "", "", history.Sampled, history.Sample{Head: 20, Lag: 8, Checkpoints: map[string]int64{"all-1": 9, "parts-1#000-7ff": 15, "parts-1#800-fff": 12}})
	put(2, "worker 1.1", "", history.WorkerEnded, history.Life{ID: "a"})
	return history.Of(all)
}

// probe compares what is drawn with what it would be without the lanes'
// contents, takes down what the tooltip says, and drags.
const probe = `<script>
const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height }).getContext("2d", { willReadFrequently: true });
const read = () => { copy.drawImage(canvas, 0, 0); return new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer); };
const full = read(), draws = lanes.map(l => l.draw);
lanes.forEach(l => { l.draw = () => {}; });
draw();
const empty = read();
lanes.forEach((l, i) => { l.draw = draws[i]; });
draw();
const row = y => Math.floor(y * canvas.width / width) * canvas.width;
const inked = l => full.subarray(row(l.y), row(l.y + l.height)).some((p, i) => p !== empty[row(l.y) + i]);
const told = () => { const all = new Set(); for (const h of hits) { 
  const at = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: at.left + (h.x0 + h.x1) / 2, clientY: at.top + (h.y0 + h.y1) / 2 }));
  if (!tip.hidden) all.add(tip.textContent); } return [...all]; };
const seen = { inked: lanes.filter(inked).map(l => l.title), told: told() };
const drag = (type, px) => canvas.dispatchEvent(new MouseEvent(type, { clientX: canvas.getBoundingClientRect().left + px, clientY: 300 }));
drag("mousedown", x(0.5)); drag("mousemove", x(0.7)); drag("mouseup", x(1));
seen.view = [view.from, view.to];
const press = key => { dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true })); return [view.from, view.to]; };
const wheel = (deltaY, keys) => { canvas.dispatchEvent(new WheelEvent("wheel", { deltaY, cancelable: true, clientX: canvas.getBoundingClientRect().left + x((view.from + view.to) / 2), clientY: 300, ...keys })); return [view.from, view.to]; };
seen.moved = [press("ArrowRight"), press("+"), press("-"), press("0"), wheel(-1, { ctrlKey: true }), wheel(1, { shiftKey: true }), wheel(1, {})];
document.querySelector("tr.BROKEN li a").click();
seen.marked = marked;
seen.referred = [view.from, view.to];
document.documentElement.dataset.seen = JSON.stringify(seen);
</script>`

func TestPictureInABrowser(t *testing.T) {
	r := reportOf(1, Finding{Name: "order", Rule: "in <order>", Checks: 10, Broken: 2, Examples: []string{"<b>bold</b>", "lost (history: 12, 14)"}})
	r.Workers, r.Writers, r.Evidence = 2, 2, &history.Evidence{History: recorded()}
	var page bytes.Buffer
	if err := r.WritePicture(&page); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(page.String(), "http://") || strings.Contains(page.String(), "https://") || strings.Contains(page.String(), "<b>bold</b>") {
		t.Error("the page refers to the network, or does not escape")
	}
	page.WriteString(probe)
	dom := rendered(t, page.String())
	var drawn struct {
		Lanes                                                  []string
		Batches, Transactions, Gaps, Faults, Lives, Ownerships int
	}
	attribute(t, dom, "drawn", &drawn)
	lanes := []string{"lag", "server", "worker 1", "worker 2", "all-1", "some-1", "parts-1", "transactions", "writers", "waiting", "gaps"}
	if !slices.Equal(drawn.Lanes, lanes) {
		t.Errorf("the lanes are %q, want %q", drawn.Lanes, lanes)
	}
	if drawn.Batches != 4 || drawn.Transactions != 2 || drawn.Gaps != 2 || drawn.Faults != 5 || drawn.Lives != 1 || drawn.Ownerships != 2 {
		t.Errorf("drawn: %+v", drawn)
	}
	var seen struct {
		Inked, Told []string
		View        [2]float64
		Moved       [][2]float64
		Marked      float64
		Referred    [2]float64
	}
	attribute(t, dom, "seen", &seen)
	if want := []string{"lag", "server", "worker 1", "all-1", "some-1", "parts-1", "transactions", "writers", "waiting", "gaps"}; !slices.Equal(seen.Inked, want) {
		t.Errorf("something is drawn in the lanes %q, want %q", seen.Inked, want)
	}
	told := strings.Join(seen.Told, "\n")
	for _, want := range []string{"worker 1.1 runs", "is the leader", "is stalled", "worker 1.1 owns all-1", "fault: consumers moved away", "to worker 2.1", "server: server crashes", "from 1.450 s to 1.550 s", "fault: backends ended",
		"batch of all-1 on worker 1.1: failed", `</script><script>throw "escaped"`, "2 late", "writer 1, transaction 1: committed", "writer 2, transaction 1: rolled back",
		"prepared at 0.400 s", "stays open for too long", "all-1 passed 2 missing positions in 1–2", "delivered late", "in doubt from 0.700 s to 0.900 s", "never to appear", "lag 9", "worker 1.1 splits parts-1", "into parts-1#000-7ff, parts-1#800-fff", "worker 1.1 owns parts-1#000-7ff", "batch of parts-1#000-7ff", "parts-1 stands at 12"} {
		if !strings.Contains(told, want) {
			t.Errorf("no tooltip says %q; they say:\n%s", want, told)
		}
	}
	if seen.View[0] < 0.45 || seen.View[0] > 0.55 || seen.View[1] < 0.95 || seen.View[1] > 1.05 {
		t.Errorf("after a drag from 0.5s to 1s the view is %v", seen.View)
	}
	a, b := seen.View[0], seen.View[1]
	quarter := (b - a) / 4
	for i, want := range [][2]float64{{a + quarter, b + quarter}, {a + 2*quarter, b}, {a + quarter, b + quarter}, {0, 2}, {0.2, 1.8}, {0.36, 1.96}, {0.36, 1.96}} {
		if got := seen.Moved[i]; math.Abs(got[0]-want[0]) > 0.01 || math.Abs(got[1]-want[1]) > 0.01 {
			t.Errorf("move %d leads to the view %v, want %v", i, got, want)
		}
	}
	if seen.Marked != 0.8 || math.Abs(seen.Referred[0]-0.3) > 0.01 || math.Abs(seen.Referred[1]-1.3) > 0.01 {
		t.Errorf("a finding that refers to record 12, of 0.8s, marks %v and shows %v", seen.Marked, seen.Referred)
	}
}

// attribute reads JSON that a script left in the page.
func attribute(t *testing.T, dom, name string, into any) {
	t.Helper()
	found := regexp.MustCompile(` data-` + name + `="([^"]*)"`).FindStringSubmatch(dom)
	if found == nil {
		t.Fatalf("the script did not come to data-%s; the page begins:\n%.600s", name, dom)
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(found[1])), into); err != nil {
		t.Fatalf("data-%s: %v", name, err)
	}
}

// rendered opens a page in a browser and returns its DOM after the scripts.
func rendered(t *testing.T, page string) string {
	t.Helper()
	browser, err := testdeps.Find(t.Context(), "Chromium", "install it (apt-get install chromium) or put it in PATH", "chromium")
	testdeps.Skip(t, err)
	folder := t.TempDir()
	file := filepath.Join(folder, "page.html")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-breakpad", "--enable-logging=stderr", "--window-size=1600,1200", "--user-data-dir="+filepath.Join(folder, "profile"), "--dump-dom", "file://"+file)
	c.Env = append(os.Environ(), "HOME="+folder, "TMPDIR="+folder, "XDG_CONFIG_HOME="+folder, "XDG_CACHE_HOME="+folder)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children end with it
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		t.Fatalf("the browser: %v\n%s", err, stderr.String())
	}
	for line := range strings.Lines(stderr.String()) {
		if strings.Contains(line, "CONSOLE") {
			t.Errorf("the browser's console: %s", line)
		}
	}
	if strings.Contains(stdout.String(), "data-error") {
		t.Error("a script failed, see data-error in the page")
	}
	return stdout.String()
}
