package queue

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/tier"
)

// ledger is the model: the expected state of all jobs.
type ledger struct {
	*stage
	rt   *rapid.T
	jobs map[int64]*entry
	runs []Run // all runs that ever existed
	left []int64
}

// entry is one job.
type entry struct {
	state                     State
	claim                     int64 // 0: it does not run
	attempt, failures, resets int
	maxAttempts, maxResets    int
	cancelled, started        bool
}

// TestStatementsAgreeWithModel draws actions of workers, zombies and operators, one after
// another, and compares the tables with the model.
func TestStatementsAgreeWithModel(t *testing.T) {
	tier.Checks(t, 40, 200)
	s := newStage(t)
	rapid.Check(t, func(rt *rapid.T) {
		s.d.Exec(t, `TRUNCATE jobs, jobs_history, jobs_attempts`)
		l := &ledger{stage: s, rt: rt, jobs: map[int64]*entry{}}
		rt.Repeat(map[string]func(*rapid.T){
			"enqueue": l.enqueue, "claim": l.claim, "settle": l.end, "complete": l.complete,
			"cancel": l.cancel, "reset": l.reset, "": func(*rapid.T) { l.check() },
		})
	})
}

func (l *ledger) enqueue(rt *rapid.T) {
	e := entry{state: Available, maxAttempts: rapid.IntRange(1, 3).Draw(rt, "attempts"), maxResets: rapid.IntRange(0, 2).Draw(rt, "resets")}
	id := l.add(NewJob{Kind: "a", MaxAttempts: e.maxAttempts, MaxResets: &e.maxResets})[0]
	l.jobs[id], l.left = &e, append(l.left, id)
}

func (l *ledger) claim(rt *rapid.T) {
	d := l.demand(rapid.IntRange(1, 4).Draw(rt, "limit"), "a")
	d.Start = rapid.IntRange(0, d.Limit).Draw(rt, "start")
	l.d.Exec(l.t, `UPDATE jobs SET run_at = clock_timestamp() - interval '1 second' WHERE state = 'available'`) // time passes
	jobs := l.stage.claim(d)
	if want := min(d.Limit, l.count(func(e *entry) bool { return e.state == Available })); len(jobs) != want {
		rt.Fatalf("claimed %d jobs, want %d", len(jobs), want)
	}
	for _, j := range jobs {
		e := l.jobs[j.ID]
		if e == nil || e.state != Available || j.Attempt != e.attempt+1 || j.Failures != e.failures || j.Resets != e.resets {
			rt.Fatalf("claimed %+v, the model has %+v", j, e)
		}
		e.state, e.claim, e.attempt, e.started = "running", j.Claim, j.Attempt, j.Started
		l.runs = append(l.runs, j.Run)
	}
}

// run draws a run, also one that has ended.
func (l *ledger) run(rt *rapid.T) (Run, *entry, bool) {
	if len(l.runs) == 0 {
		rt.Skip("there is no run")
	}
	r := rapid.SampledFrom(l.runs).Draw(rt, "run")
	e := l.jobs[r.ID]
	return r, e, e.claim == r.Claim
}

func (l *ledger) complete(rt *rapid.T) {
	r, e, mine := l.run(rt)
	done, err := l.Complete(l.t.Context(), l.d.DB, []Run{r})
	if err != nil || (len(done) == 1) != mine {
		rt.Fatalf("run %v completes %v, %v; it is its own: %v", r, done, err, mine)
	}
	if mine {
		e.state, e.claim = Completed, 0
	}
}

func (l *ledger) end(rt *rapid.T) {
	r, e, mine := l.run(rt)
	end := End{Run: r, To: rapid.SampledFrom([]State{Available, Available, Completed, Failed}).Draw(rt, "to"), Outcome: Erred}
	end.Counts = end.To == Failed || end.To == Available && rapid.Bool().Draw(rt, "counts")
	states := l.settle(end)
	if (len(states) == 1) != mine {
		rt.Fatalf("run %v settles %v; it is its own: %v", r, states, mine)
	}
	if !mine {
		return
	}
	want := end.To
	switch {
	case want != Available:
	case e.cancelled:
		want = Cancelled
	case end.Counts && e.failures+1 >= e.maxAttempts:
		want = Failed
	}
	if states[r.ID] != want {
		rt.Fatalf("job %d came to %v, want %s: %+v", r.ID, states, want, e)
	}
	if end.Counts && (want == Available || want == Failed) {
		e.failures++
	}
	e.state, e.claim = want, 0
}

func (l *ledger) cancel(rt *rapid.T) {
	if len(l.left) == 0 {
		rt.Skip("there is no job")
	}
	id := rapid.SampledFrom(l.left).Draw(rt, "job")
	e := l.jobs[id]
	was, err := l.Cancel(l.t.Context(), l.d.DB, id)
	switch {
	case err != nil:
		rt.Fatal(err)
	case e.state == Available && was == Available:
		e.state = Cancelled
	case e.state == "running" && was == "running":
		e.cancelled = true
	case was != "" || e.state == Available || e.state == "running":
		rt.Fatalf("job %d was %q, the model has %+v", id, was, e)
	}
}

func (l *ledger) reset(rt *rapid.T) {
	lost, err := l.Lost(l.t.Context(), l.d.DB, nil, 1000, deadSQL, l.me.String())
	if err != nil {
		l.t.Fatal(err)
	}
	back, ended, err := l.Reset(l.t.Context(), l.d.DB, lost, deadSQL, l.me.String())
	if err != nil {
		rt.Fatal(err)
	}
	wantBack, wantEnded := 0, 0
	for _, e := range l.jobs {
		if e.state != "running" {
			continue
		}
		e.claim = 0
		switch {
		case e.cancelled:
			e.state = Cancelled
			wantEnded++
		case e.started && e.resets >= e.maxResets:
			e.state = Failed
			wantEnded++
		default:
			e.state = Available
			wantBack++
			if e.started {
				e.resets++
			}
		}
	}
	if back != wantBack || ended != wantEnded {
		rt.Fatalf("reset: %d back and %d ended, want %d and %d", back, ended, wantBack, wantEnded)
	}
}

func (l *ledger) count(is func(*entry) bool) (n int) {
	for _, e := range l.jobs {
		if is(e) {
			n++
		}
	}
	return n
}

// check compares the model with the tables.
func (l *ledger) check() {
	got := l.rows(`
SELECT concat_ws(' ', id, state, coalesce(claim, 0), attempt, failures, resets) FROM (
	SELECT id, state, claim, attempt, failures, resets FROM jobs
	UNION ALL SELECT id, state, NULL, attempt, failures, resets FROM jobs_history) AS j`)
	var want []string
	for id, e := range l.jobs {
		want = append(want, fmt.Sprintln(id, e.state, e.claim, e.attempt, e.failures, e.resets))
	}
	for i := range want {
		want[i] = want[i][:len(want[i])-1]
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		l.rt.Fatalf("the tables have\n%q, the model\n%q", got, want)
	}
}

func (l *ledger) rows(query string) (all []string) {
	rows, err := l.d.DB.QueryContext(l.t.Context(), query)
	if err != nil {
		l.rt.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			l.rt.Fatal(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		l.rt.Fatal(err)
	}
	return all
}
