package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/command"
)

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args, stdout, stderr string
		status               int
	}{
		{"-h", "Usage: go run . [flags]", "", command.OK},
		{"-only noop,toop", "", `no scenario "toop"`, command.Error},
		{"-slots 100,0", "", `"0" is no number from 1 to 10000`, command.Error},
		{"-rounds 0", "", "-rounds 1", command.Error},
		{"now", "", `unexpected argument "now"`, command.Error},
	} {
		var stdout, stderr bytes.Buffer
		status := run(context.Background(), strings.Fields(c.args), &stdout, &stderr)
		if status != c.status || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%s: status %d, stdout %q, stderr %q", c.args, status, &stdout, &stderr)
		}
	}
}

// A run in which a job is missing, ran twice or was never enqueued is no result.
func TestTally(t *testing.T) {
	for name, c := range map[string]struct {
		ran  []int
		want string
	}{
		"each once": {[]int{2, 0, 1}, ""},
		"missing":   {[]int{0, 1}, "1 did not run"},
		"twice":     {[]int{0, 1, 2, 1}, "1 ran more than once"},
		"foreign":   {[]int{0, 1, 2, 3, -1}, "2 ran that nobody enqueued"},
	} {
		all := newTally(3)
		for _, job := range c.ran {
			all.ran(job)
		}
		err := all.check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Ratios say how much better ours is, and are taken round by round.
func TestCells(t *testing.T) {
	rate := func(perSecond int) result { return result{jobs: perSecond, took: time.Second} }
	late := func(ms int) result {
		return result{jobs: 1, latencies: durations{time.Duration(ms) * time.Millisecond}}
	}
	g := group{contestants: []contestant{{theirs, "a", config{}}, {ours, "b", config{}}}}
	rates := block{"s", g, [][]result{{rate(1_000), rate(100), rate(1_000)}, {rate(3_000), rate(200), rate(8_000)}}}
	if got, want := strings.Join(rates.cells(0, 1)[2:6], "|"), "a: 1,000/s|b: 3,000/s|3.00|2.00 to 8.00"; got != want {
		t.Errorf("rates: %s, want %s", got, want)
	}
	times := block{"s", g, [][]result{{late(30), late(60)}, {late(10), late(30)}}}
	if got, want := times.cells(0, 1)[4], "p50 3.00, p99 2.00"; got != want {
		t.Errorf("latencies: %s, want %s", got, want)
	}
	failed := block{"s", g, [][]result{nil, {rate(1)}}}
	if got := failed.cells(0, 1); got[2] != "a: failed" || got[4] != "" {
		t.Errorf("a side that failed: %q", got)
	}
}

func TestQuantiles(t *testing.T) {
	d := durations{4, 1, 3, 2}
	if p50, p99 := d.quantile(0.5), d.quantile(0.99); p50 != 2 || p99 != 4 || durations(nil).quantile(0.5) != 0 {
		t.Errorf("p50 %d, p99 %d", p50, p99)
	}
}
