package oracle

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/sim/history"
)

func TestFlawlessRunHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, f := range Judge(flawless(t)) {
			if !f.Holds() {
				t.Fatalf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
			}
		}
	})
}

// TestCrashesAreAllowedFor lets a crash take back commits that were not waited
// for, and give their positions out again; it may also set consumers back.
func TestCrashesAreAllowedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := flawless(t)
		unsure(e)
		for _, event := range e.Log {
			event.EventID = uuid.New() // who had the position before
			e.Unsure = append(e.Unsure, []history.Event{event, {Position: e.Rest.Head + 1, EventID: uuid.New()}})
		}
		e.Forgetful = true
		back := slices.Clone(e.Samples[0])
		back[0].Life = 2
		e.Samples = append(e.Samples, back)
		for _, f := range Judge(e) {
			if !f.Holds() {
				t.Fatalf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
			}
		}
		if back, again := afterLives(e); back != int64(len(e.Log)) || again < int64(len(e.Log)) {
			t.Fatalf("%d transactions taken back, %d positions given out again, want %d of each", back, again, len(e.Log))
		}
	})
}

// What was visible where a consumer was placed is none of its business.
func TestConsumerAtTheHeadNeedNotApplyWhatWasThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := flawless(t)
		placeAtHead(e, e.Rest.Head, 0)
		for _, f := range Judge(e) {
			if !f.Holds() {
				t.Fatalf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
			}
		}
	})
}

// A handler that ends its transaction is allowed for if its worker ended, and
// the repair was recorded or left to an operator, or may be gone.
func TestBrokenRulesAreAllowedFor(t *testing.T) {
	for name, change := range map[string]func(*history.Evidence){
		"repaired": func(*history.Evidence) {},
		"left to an operator": func(e *history.Evidence) {
			e.Repairs = nil
			e.Breaches = append(e.Breaches, history.Breach{Consumer: "all", Worker: "b", Unknown: &history.Span{First: 1, Last: 1}})
		},
		"set back since": func(e *history.Evidence) {
			e.Repairs, e.Exits[1].Asked, e.Restores = nil, history.ExitStopped, []history.Restore{{Copied: 1, Restored: 3}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				e := flawless(t)
				breakRule(e)
				change(e)
				for _, f := range Judge(e) {
					if !f.Holds() {
						t.Fatalf("%s: %d checks, broken %d times: %v", f.Name, f.Checks, f.Broken, f.Examples)
					}
				}
			})
		})
	}
}

func TestNothingCheckedIsNotHeld(t *testing.T) {
	for _, f := range Judge(&history.Evidence{}) {
		if f.Name != "comes to rest" && (f.Checks != 0 || f.Holds()) {
			t.Errorf("%s: %d checks of nothing, holds: %v", f.Name, f.Checks, f.Holds())
		}
	}
}

func TestExamplesAreFew(t *testing.T) {
	var f Finding
	for range 100 {
		f.check(false, func() string { return "wrong" })
	}
	if f.Broken != 100 || len(f.Examples) != maxExamples {
		t.Errorf("broken %d times with %d examples, want 100 with %d", f.Broken, len(f.Examples), maxExamples)
	}
}

// TestShareOutIsMaximal compares with all possible ways.
func TestShareOutIsMaximal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		positions := slices.Sorted(slices.Values(rapid.SliceOfNDistinct(rapid.Int64Range(1, 12), 0, 7, rapid.ID).Draw(t, "positions")))
		rows := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) history.Skip {
			first := rapid.Int64Range(1, 12).Draw(t, "first")
			return history.Skip{Span: history.Span{First: first, Last: first + rapid.Int64Range(0, 6).Draw(t, "length")}, Missing: rapid.Int64Range(0, 3).Draw(t, "missing")}
		}), 0, 5).Draw(t, "rows")
		unplaced, spare := shareOut(positions, rows)
		room := make([]int64, len(rows))
		taken := int64(0)
		for i, row := range rows {
			room[i] = row.Missing
			if spare[i] < 0 || spare[i] > row.Missing {
				t.Fatalf("row %v lacks %d", row, spare[i])
			}
			taken += row.Missing - spare[i]
		}
		if placed := int64(len(positions) - len(unplaced)); placed != taken || placed != mostPlaced(positions, rows, room) {
			t.Fatalf("%d placed, %d taken, %d possible", placed, taken, mostPlaced(positions, rows, room))
		}
	})
}

func mostPlaced(positions []int64, rows []history.Skip, room []int64) int64 {
	if len(positions) == 0 {
		return 0
	}
	most := mostPlaced(positions[1:], rows, room)
	for i, row := range rows {
		if row.Holds(positions[0]) && room[i] > 0 {
			room[i]--
			most = max(most, 1+mostPlaced(positions[1:], rows, room))
			room[i]++
		}
	}
	return most
}

// What was broken counts, whatever the harness could not do. What was never checked is not
// judged.
func TestVerdictIsOneOfThree(t *testing.T) {
	held, broken, never := Finding{Name: "a", Checks: 3}, Finding{Name: "b", Checks: 9, Broken: 2}, Finding{Name: "c"}
	failure := &history.HarnessFailure{Step: "the copy of the server", Bound: 30 * time.Second, Error: "cp: context deadline exceeded"}
	for _, c := range []struct {
		name     string
		failure  *history.HarnessFailure
		findings []Finding
		want     Outcome
		says     string
	}{
		{"all held", nil, []Finding{held}, Held, "all 1 invariants held"},
		{"one broken", nil, []Finding{held, broken}, Broken, `BROKEN: "b" (2 times)`},
		{"one never checked", nil, []Finding{held, never}, NotJudged, `NOT JUDGED: never checked: "c"`},
		{"one never checked, one broken", nil, []Finding{broken, never}, Broken, `BROKEN: "b" (2 times)`},
		{"the harness failed", failure, []Finding{held}, NotJudged, "NOT JUDGED: the copy of the server took longer than 30s"},
		{"the harness failed, one never checked", failure, []Finding{held, never}, NotJudged, "NOT JUDGED: "},
		{"the harness failed, nothing checked", failure, nil, NotJudged, "NOT JUDGED: "},
		{"the harness failed, one broken", failure, []Finding{never, broken}, Broken, `BROKEN: "b" (2 times), over 0 events, at least 0 for each consumer, and 0 worker crashes; later the copy of the server took`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Report{Invariants: c.findings, Evidence: &history.Evidence{Harness: c.failure}}
			r.judge()
			if r.Outcome != c.want || r.Held != (c.want == Held) || !strings.Contains(r.Verdict, c.says) {
				t.Errorf("%q, held %v, %q; want %q, %q", r.Outcome, r.Held, r.Verdict, c.want, c.says)
			}
		})
	}
}

func TestSecondRunNotJudgedNamesBoth(t *testing.T) {
	of := func(step string, bound time.Duration) *Report {
		r := &Report{Evidence: &history.Evidence{Harness: &history.HarnessFailure{Step: step, Bound: bound, Error: "no route"}}}
		r.judge()
		return r
	}
	again := of("the copy of the server", time.Minute)
	again.Again(of("the copy of the server", 30*time.Second))
	if want := "NOT JUDGED: the copy of the server took longer than 30s twice, the second time than 1m0s"; again.Verdict != want {
		t.Errorf("the verdict is %q, want %q", again.Verdict, want)
	}
	other := of("the connection to the server", 0)
	other.Again(of("the copy of the server", 30*time.Second))
	if want := "NOT JUDGED: twice: the copy of the server took longer than 30s; then the connection to the server failed: no route"; other.Verdict != want {
		t.Errorf("the verdict is %q, want %q", other.Verdict, want)
	}
}

// A run that was judged at the second try leaves a trace of the first.
func TestFirstTryIsKept(t *testing.T) {
	first := &Report{Evidence: &history.Evidence{Harness: &history.HarnessFailure{Step: "the copy of the server", Bound: 30 * time.Second}}}
	first.judge()
	for want, findings := range map[Outcome][]Finding{Held: {{Name: "a", Checks: 3}}, Broken: {{Name: "a", Checks: 3, Broken: 1}}} {
		r := &Report{Invariants: findings, Evidence: &history.Evidence{}}
		r.judge()
		r.Again(first)
		var text, sum strings.Builder
		total := Sum([]*Report{r})
		if err := errors.Join(r.WriteText(&text), total.WriteText(&sum)); err != nil {
			t.Fatal(err)
		}
		const verdict = "NOT JUDGED: the copy of the server took longer than 30s"
		if r.Outcome != want || r.FirstTry != verdict || !strings.Contains(text.String(), "first:   "+verdict+"\n") {
			t.Errorf("%s: the first try is %q\n%s", want, r.FirstTry, text.String())
		}
		if total.SecondTry != 1 || !strings.Contains(sum.String(), "; judged at the second try: 1\n") {
			t.Errorf("%s: judged at the second try: %d\n%s", want, total.SecondTry, sum.String())
		}
	}
}

// Incomplete evidence proves what was done wrong, not what was not done: it may just not
// have been done yet.
func TestIncompleteEvidence(t *testing.T) {
	event := func(position int64) history.Event {
		return history.Event{Position: position, Type: "order", ID: "x", Version: position}
	}
	entry := func(position int64, batch string) history.Entry {
		return history.Entry{Event: event(position), Consumer: "all", Worker: "worker 1.1", Batch: batch}
	}
	evidence := func(ledger ...history.Entry) *history.Evidence {
		return &history.Evidence{
			Incomplete: true, Consumers: []history.Scope{{Name: "all"}}, History: history.Of(nil), Ledger: ledger,
			Committed: []history.Event{event(1), event(2), event(3)}, Log: []history.Event{event(1), event(2)},
			Harness: &history.HarnessFailure{Step: "the copy of the server"},
		}
	}
	judged := func(e *history.Evidence) *Report {
		r := &Report{}
		r.Judge(e)
		return r
	}
	if r := judged(evidence(entry(1, "1"))); r.Outcome != NotJudged {
		t.Errorf("two of three events not applied yet: %q: %s", r.Outcome, r.Verdict)
	}
	if r := judged(evidence(entry(1, "1"), entry(1, "2"))); r.Outcome != Broken || !strings.Contains(r.Verdict, `"exactly once" (1 times)`) {
		t.Errorf("an event applied twice: %q: %s", r.Outcome, r.Verdict)
	}
	if r := judged(evidence(entry(2, "1"), entry(1, "2"))); r.Outcome != Broken || !strings.Contains(r.Verdict, `"order"`) {
		t.Errorf("events out of order: %q: %s", r.Outcome, r.Verdict)
	}
	unread := evidence()
	unread.Unread, unread.Log = true, nil
	if r := judged(unread); r.Outcome != NotJudged {
		t.Errorf("tables that could not be read: %q: %s", r.Outcome, r.Verdict)
	}
	unread.Unkept = []string{"WaitFor said that all had handled position 1, and it had not"}
	if r := judged(unread); r.Outcome != Broken {
		t.Errorf("a wrong answer of WaitFor, and tables that could not be read: %q: %s", r.Outcome, r.Verdict)
	}
	failed := evidence(entry(1, "1"))
	failed.Harness, failed.Failures = nil, []string{"writer 3: syntax error"}
	if r := judged(failed); r.Outcome != Broken || !strings.Contains(r.Verdict, `"calls"`) {
		t.Errorf("an error that nothing explains: %q: %s", r.Outcome, r.Verdict)
	}
	jobs := &history.Evidence{Incomplete: true, Jobs: &history.Jobs{}, History: history.Of(nil), Harness: &history.HarnessFailure{Step: "the copy of the server"}}
	jobs.Jobs.Enqueued = []history.Enqueued{{Token: "a", Outcome: history.EnqueueCommitted}}
	if r := judged(jobs); r.Outcome != NotJudged {
		t.Errorf("a job that was not read: %q: %s", r.Outcome, r.Verdict)
	}
	jobs.Jobs.Finished = []history.Finished{{ID: 1, Token: "a", Kind: "tx", State: "completed"}}
	if r := judged(jobs); r.Outcome != Broken || !strings.Contains(r.Verdict, `"effects once"`) {
		t.Errorf("a job completed without its effect: %q: %s", r.Outcome, r.Verdict)
	}
}

func TestVerdict(t *testing.T) {
	held := Finding{Name: "a", Checks: 3}
	for _, c := range []struct {
		name     string
		findings []Finding
		held     bool
		says     string
	}{
		{"all held", []Finding{held}, true, "all 1 invariants held over 1,234 events, at least 7 for each consumer, and 3 worker crashes"},
		{"one broken", []Finding{held, {Name: "b", Checks: 9, Broken: 2}}, false, `BROKEN: "b" (2 times)`},
		{"one never checked", []Finding{held, {Name: "b"}}, false, `never checked: "b"`},
		{"nothing judged", nil, false, "nothing was judged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Report{Events: 1234, Handled: []Handled{{"a", 9}, {"b", 7}}, Counts: []history.Count{{Fault: history.Crashes, Count: 1}, {Fault: history.CommitCrashes, Count: 1}, {Fault: history.IdleCrashes, Count: 1}}, Invariants: c.findings}
			r.judge()
			if r.Held != c.held || !strings.Contains(r.Verdict, c.says) {
				t.Errorf("held %v, %q; want %v, %q", r.Held, r.Verdict, c.held, c.says)
			}
		})
	}
}
