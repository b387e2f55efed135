package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A run that does not finish its job makes it available again, until it has failed too often.
func TestSettle(t *testing.T) {
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a", MaxAttempts: 2}, NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "a"})
	jobs := s.claim(s.demand(10, "a"))
	delay, none := time.Hour.Microseconds(), int64(0)
	states := s.settle(
		End{Run: jobs[0].Run, To: Available, Delay: &none, Counts: true, Outcome: Erred, Code: "E", Error: "boom\x00boom"},
		End{Run: jobs[1].Run, To: Completed, Result: json.RawMessage(`{"x":1}`)},
		End{Run: jobs[2].Run, To: Available, Outcome: Released},
		End{Run: jobs[3].Run, To: Available, Delay: &delay, Outcome: Snoozed})
	want := map[int64]State{ids[0]: Available, ids[1]: Completed, ids[2]: Available, ids[3]: Available}
	if fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("settled: %v, want %v", states, want)
	}
	s.want("the result", `{"x": 1}`, `SELECT result::text FROM jobs_history WHERE id = $1`, ids[1])
	s.want("failures", "1 0 0", `SELECT string_agg(failures::text, ' ' ORDER BY id) FROM jobs`)
	s.want("attempts", "error E snoozed released", `SELECT string_agg(concat_ws(' ', outcome, nullif(code, '')), ' ' ORDER BY outcome = 'released', outcome) FROM jobs_attempts`)
	again := s.claim(s.demand(10, "a"))
	if !slices.Equal(idsOf(again), []int64{ids[0], ids[2]}) || again[0].Attempt != 2 || again[0].Failures != 1 {
		t.Fatalf("due again: %+v", again)
	}
	if states := s.settle(End{Run: again[0].Run, To: Available, Counts: true, Outcome: Erred, Error: "boom"}); states[ids[0]] != Failed {
		t.Errorf("the second failure of two: %v", states)
	}
	s.want("it failed", "2 boom", `SELECT failures || ' ' || error FROM jobs_history WHERE id = $1`, ids[0])
}

// Judge returns the stored outcome of each run, not the requested one.
func TestJudge(t *testing.T) {
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a", MaxAttempts: 1}, NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "a"})
	jobs := s.claim(s.demand(10, "a"))
	if _, err := s.Cancel(t.Context(), s.d.DB, ids[2]); err != nil {
		t.Fatal(err)
	}
	var runs []Run
	for i, j := range jobs {
		runs = append(runs, j.Run)
		if i < 4 {
			s.settle(End{Run: j.Run, To: Available, Counts: true, Outcome: Erred})
		}
	}
	if done, err := s.Complete(t.Context(), s.d.DB, runs[4:]); len(done) != 1 || err != nil {
		t.Fatalf("completed %v, %v", done, err)
	}
	s.d.Exec(t, `UPDATE jobs SET run_at = now()`)
	s.claim(s.demand(10, "a")) // other workers run the released jobs
	got, err := s.Judge(t.Context(), s.d.DB, runs)
	want := []Settled{{ids[0], Failed}, {ids[1], Available}, {ids[2], Cancelled}, {ids[3], Available}, {ids[4], Completed}}
	slices.SortFunc(got, func(a, b Settled) int { return int(a.ID - b.ID) })
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("told %v, %v, want %v", got, err, want)
	}
}

// In a queue of retention 0, Complete leaves no trace of a job at its first attempt.
func TestCompleteWithRetentionZero(t *testing.T) {
	s := newStage(t)
	s.d.Exec(t, `INSERT INTO jobs_queues (name, retention) VALUES ('default', '0')`)
	s.add(NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "a"}, NewJob{Kind: "a"})
	s.d.Exec(t, `UPDATE jobs SET attempt = 1 WHERE id = 4`) // a later attempt follows
	var runs []Run
	for _, j := range s.claim(s.demand(10, "a")) {
		runs = append(runs, j.Run)
	}
	for _, part := range [][]Run{runs[:1], runs[1:4]} {
		if done, err := s.Complete(t.Context(), s.d.DB, part); len(done) != len(part) || err != nil {
			t.Fatalf("completed %v, %v", done, err)
		}
	}
	other := Run{runs[4].ID, runs[4].Claim + 1} // of a job that runs under another claim
	got, err := s.Judge(t.Context(), s.d.DB, append(runs[:4:4], other))
	want := []Settled{{runs[0].ID, Gone}, {runs[1].ID, Gone}, {runs[2].ID, Gone}, {runs[3].ID, Completed}}
	slices.SortFunc(got, func(a, b Settled) int { return int(a.ID - b.ID) })
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("told %v, %v, want %v", got, err, want)
	}
}

// Only the run that holds a job can end it, alone or in a list.
func TestOnlyOwnRunEnds(t *testing.T) {
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a"})
	id := ids[0]
	var own, zombies []Run
	for _, job := range s.claim(s.demand(2, "a")) {
		own, zombies = append(own, job.Run), append(zombies, Run{job.ID, job.Claim + 1})
	}
	for _, runs := range [][]Run{zombies, zombies[:1]} {
		if done, err := s.Complete(t.Context(), s.d.DB, runs); len(done) != 0 || err != nil {
			t.Errorf("other claims complete %v, %v", done, err)
		}
	}
	s.d.Exec(t, `UPDATE jobs SET started_at = NULL`)
	if started, err := s.Start(t.Context(), s.d.DB, zombies); len(started) != 0 || err != nil {
		t.Errorf("other claims start %v, %v", started, err)
	}
	if states := s.settle(End{Run: zombies[0], To: Failed}); len(states) != 0 {
		t.Errorf("another claim settles %v", states)
	}
	if done, err := s.Complete(t.Context(), s.d.DB, own[:1]); err != nil || !slices.Equal(done, []int64{id}) {
		t.Errorf("its own completes %v, %v", done, err)
	}
	if done, err := s.Complete(t.Context(), s.d.DB, own); err != nil || !slices.Equal(done, ids[1:]) {
		t.Errorf("a second time, and another: %v, %v", done, err)
	}
	if done, err := s.Complete(t.Context(), s.d.DB, own[:1]); err != nil || len(done) != 0 {
		t.Errorf("a third time: %v, %v", done, err)
	}
	before, err := s.Judge(t.Context(), s.d.DB, []Run{own[0], zombies[0]})
	if err != nil || !slices.Equal(before, []Settled{{id, Completed}}) {
		t.Errorf("settled before: %v, %v", before, err)
	}
}

// Statements that end runs skip locked rows without a wait.
func TestLockedRunsStay(t *testing.T) {
	s := newStage(t)
	s.add(NewJob{Kind: "a"}, NewJob{Kind: "a"})
	var own []Run
	for _, job := range s.claim(s.demand(2, "a")) {
		own = append(own, job.Run)
	}
	tx, err := s.d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SELECT FROM jobs FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	for _, runs := range [][]Run{own, own[:1]} {
		if done, err := s.Complete(ctx, s.d.DB, runs); len(done) != 0 || err != nil {
			t.Errorf("%d locked: %v, %v", len(runs), done, err)
		}
	}
}

// Only the latest attempts of a job that snoozes for ever are kept. The attempts of other jobs
// stay.
func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ids := s.add(NewJob{Kind: "a"}, NewJob{Kind: "a"})
	s.d.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, outcome) SELECT id, n, 'snoozed' FROM jobs, generate_series(1, $1::int) AS n`, maxAttempts)
	s.d.Exec(t, `UPDATE jobs SET attempt = $2 WHERE id = $1`, ids[0], maxAttempts)
	jobs := s.claim(s.demand(2, "a"))
	s.settle(End{Run: jobs[0].Run, To: Available, Outcome: Snoozed}, End{Run: jobs[1].Run, To: Available, Outcome: Snoozed})
	s.want("attempts", "2 1001 1000, 1 1000 1000", `
SELECT string_agg(text, ', ' ORDER BY text DESC) FROM (
	SELECT min(attempt) || ' ' || max(attempt) || ' ' || count(*) AS text FROM jobs_attempts GROUP BY job_id) AS a`)
}
