package oracle

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/sim/history"
)

func reportOf(seed uint64, findings ...Finding) *Report {
	r := &Report{
		Seed: seed, Events: 1000, Handled: []Handled{{"a", 9}, {"b", 7}}, Knobs: []Line{{"batch", "10 events"}},
		Counts: []history.Count{{Fault: history.Crashes, Count: 3}, {Fault: history.Fault("appends rolled back"), Count: 5}}, Invariants: findings, Repeat: "go run ./cmd/sim -seed 1",
	}
	r.judge()
	return r
}

func TestReportSaysWhatBroke(t *testing.T) {
	var b strings.Builder
	r := reportOf(1, Finding{Name: "order", Rule: "in order", Checks: 12345},
		Finding{Name: "exactly once", Rule: "once", Checks: 10, Broken: 2, Examples: []string{"all-1 never applied position 7"}})
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"seed 1:", "10 events", "1,000", "12,345", "ok     order", "BROKEN exactly once", "broken 2 times", "- all-1 never applied position 7",
		"verdict: BROKEN: \"exactly once\" (2 times)", "repeat:  go run ./cmd/sim -seed 1",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, b.String())
		}
	}
}

func TestReportIsJSON(t *testing.T) {
	text, err := json.Marshal(reportOf(1, Finding{Name: "order", Checks: 1}))
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Seed != 1 || !back.Held || back.Fewest() != (Handled{"b", 7}) || back.Count(history.Fault("appends rolled back")) != 5 || back.Invariants[0].Checks != 1 {
		t.Errorf("back from JSON: %+v", back)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -999: "-999", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
