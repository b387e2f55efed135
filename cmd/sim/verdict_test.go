package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/oracle"
)

// relay leads to a server. When a run is under way, it cuts all connections whenever a writer
// sends something, so that the harness waits for an answer, which never comes.
type relay struct {
	to       string
	listener net.Listener

	mu    sync.Mutex
	open  map[net.Conn]bool
	armed bool // a run has begun, without writers yet
	left  int  // messages of writers until one cuts all; below 0: none does
	cuts  int  // runs that were cut
}

// newRelay starts a relay, which ends with the test, and returns the connection string of
// the server behind it.
func newRelay(t *testing.T, server string) (*relay, string) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{to: u.Host, listener: l, open: map[net.Conn]bool{}}
	u.Host = l.Addr().String()
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connections.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.cut()
		connections.Wait()
	})
	return r, u.String()
}

func (r *relay) serve(client net.Conn) {
	server, err := net.Dial("tcp4", r.to)
	if err != nil {
		_ = client.Close()
		return
	}
	r.mu.Lock()
	r.open[client], r.open[server] = true, true
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
	first := make([]byte, 1024)
	n, _ := client.Read(first)
	r.begins(first[:n])
	_, _ = server.Write(first[:n])
	var sent io.Reader = client
	if bytes.Contains(first[:n], []byte("sim writer")) {
		sent = io.TeeReader(client, writes{r})
	}
	_, _ = io.Copy(server, sent)
	_ = server.Close()
	both.Wait()
	r.mu.Lock()
	delete(r.open, client)
	delete(r.open, server)
	r.mu.Unlock()
}

// begins reads who connects: the harness measures the machine before a run, then writers
// come.
func (r *relay) begins(startup []byte) {
	r.mu.Lock()
	if bytes.Contains(startup, []byte("sim_measure_")) {
		r.armed, r.left = true, -1
	}
	if r.armed && bytes.Contains(startup, []byte("sim writer")) {
		r.armed, r.left = false, 20 // when the run is under way
	}
	r.mu.Unlock()
}

// writes sees what a writer sends before it is passed on.
type writes struct{ of *relay }

func (w writes) Write(p []byte) (int, error) {
	w.of.mu.Lock()
	due := w.of.left == 0
	switch {
	case w.of.left > 1:
		w.of.left--
	case w.of.left == 1:
		w.of.left, due = 0, true
		w.of.cuts++
	}
	w.of.mu.Unlock()
	if due {
		w.of.cut()
		return 0, net.ErrClosed
	}
	return len(p), nil
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		_ = c.Close()
	}
}

// A run whose harness loses its connections is repeated once, and then told as not judged. It ends
// with the first statement of the harness that a cut meets: on a slow machine two seconds had none.
func TestRunWithoutConnectionsIsNotJudged(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string][]string{"events": {"-consumers", "1"}, "jobs": {"-jobs"}} {
		t.Run(name, func(t *testing.T) {
			if name != "events" {
				tier.Long(t, "TestRunWithoutConnectionsIsNotJudged, of events")
			}
			r, db := newRelay(t, pgtest.Server(t).URL(""))
			args := append([]string{"-json", "-db", db, "-workers", "1", "-writers", "1", "-duration", "1m", "-seed", "3", "-faults", "none", "-keep", t.TempDir()}, kind...)
			var stdout, stderr bytes.Buffer
			if status := run(t.Context(), args, &stdout, &stderr); status != command.NotJudged {
				t.Errorf("exit status %d, want %d", status, command.NotJudged)
			}
			var out struct {
				Total oracle.Total    `json:"total"`
				Runs  []oracle.Report `json:"runs"`
			}
			if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
				t.Fatalf("%v in %s\n%s", err, stdout.String(), stderr.String())
			}
			if r.cuts != 2 || len(out.Runs) != 1 || out.Runs[0].Outcome != oracle.NotJudged || !strings.HasPrefix(out.Runs[0].Verdict, "NOT JUDGED: twice: ") {
				t.Errorf("cut %d times, and it says %q", r.cuts, out.Runs[0].Verdict)
				for _, f := range out.Runs[0].Invariants {
					if f.Broken > 0 {
						t.Errorf("%s: %q", f.Name, f.Examples)
					}
				}
			}
			if len(out.Total.NotJudged) != 1 || out.Total.Outcome != oracle.NotJudged || out.Runs[0].Slowness < 1 {
				t.Errorf("the sum: %q, not judged %v, slowness %g", out.Total.Outcome, out.Total.NotJudged, out.Runs[0].Slowness)
			}
			if !strings.Contains(stderr.String(), "it is repeated with twice the time") {
				t.Errorf("nothing is said of the second run: %s", stderr.String())
			}
		})
	}
}

// reportsOf are reports with these outcomes.
func reportsOf(outcomes ...oracle.Outcome) (all []*oracle.Report) {
	for _, o := range outcomes {
		all = append(all, &oracle.Report{Outcome: o, Held: o == oracle.Held})
	}
	return all
}

func TestStatus(t *testing.T) {
	t.Parallel()
	failure := harness.Failed("the stop of the server", time.Second, context.DeadlineExceeded)
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		outcomes []oracle.Outcome
		err      error
		ctx      context.Context
		want     int
	}{
		{outcomes: []oracle.Outcome{oracle.Held}, want: command.OK},
		{outcomes: []oracle.Outcome{oracle.Held, oracle.Broken}, want: command.Failed},
		{outcomes: []oracle.Outcome{oracle.Held, oracle.NotJudged}, want: command.NotJudged},
		{outcomes: []oracle.Outcome{oracle.NotJudged, oracle.Broken}, want: command.Failed},
		{outcomes: append(slices.Repeat([]oracle.Outcome{oracle.Held}, 9), oracle.NotJudged), want: command.OK},
		{outcomes: []oracle.Outcome{oracle.Held}, err: failure, want: command.NotJudged},
		{outcomes: []oracle.Outcome{oracle.Broken}, err: failure, want: command.Failed},
		{outcomes: nil, err: errors.New("no binaries"), want: command.Error},
		{outcomes: nil, err: &net.OpError{Op: "dial", Err: errors.New("refused")}, want: command.Error},
		{outcomes: []oracle.Outcome{oracle.Held}, err: failure, ctx: ended, want: command.Error},
	} {
		ctx := c.ctx
		if ctx == nil {
			ctx = t.Context()
		}
		if got := status(ctx, oracle.Sum(reportsOf(c.outcomes...)), c.err, io.Discard); got != c.want {
			t.Errorf("%v, %v: exit status %d, want %d", c.outcomes, c.err, got, c.want)
		}
	}
}
