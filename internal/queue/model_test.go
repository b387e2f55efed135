package queue

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/tier"
)

// book is what became of jobs, as an accountant has it who sees every statement.
type book struct {
	*stage
	rt   *rapid.T
	jobs map[int64]*entry
	runs []Run // that ever were
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

// TestWhateverIsDone draws what workers, zombies and operators do, one after
// another: the tables have what the book has.
func TestWhateverIsDone(t *testing.T) {
	tier.Checks(t, 40, 200)
	s := newStage(t)
	rapid.Check(t, func(rt *rapid.T) {
		s.d.Exec(t, `TRUNCATE jobs, jobs_history, jobs_attempts`)
		b := &book{stage: s, rt: rt, jobs: map[int64]*entry{}}
		rt.Repeat(map[string]func(*rapid.T){
			"enqueue": b.enqueue, "claim": b.claim, "settle": b.end, "complete": b.complete,
			"cancel": b.cancel, "reset": b.reset, "": func(*rapid.T) { b.check() },
		})
	})
}

func (b *book) enqueue(rt *rapid.T) {
	e := entry{state: Available, maxAttempts: rapid.IntRange(1, 3).Draw(rt, "attempts"), maxResets: rapid.IntRange(0, 2).Draw(rt, "resets")}
	id := b.add(NewJob{Kind: "a", MaxAttempts: e.maxAttempts, MaxResets: &e.maxResets})[0]
	b.jobs[id], b.left = &e, append(b.left, id)
}

func (b *book) claim(rt *rapid.T) {
	d := b.demand(rapid.IntRange(1, 4).Draw(rt, "limit"), "a")
	d.Start = rapid.IntRange(0, d.Limit).Draw(rt, "start")
	b.d.Exec(b.t, `UPDATE jobs SET run_at = clock_timestamp() - interval '1 second' WHERE state = 'available'`) // time passes
	jobs := b.take(d)
	if want := min(d.Limit, b.count(func(e *entry) bool { return e.state == Available })); len(jobs) != want {
		rt.Fatalf("claimed %d jobs, want %d", len(jobs), want)
	}
	for _, j := range jobs {
		e := b.jobs[j.ID]
		if e == nil || e.state != Available || j.Attempt != e.attempt+1 || j.Failures != e.failures || j.Resets != e.resets {
			rt.Fatalf("claimed %+v, the book has %+v", j, e)
		}
		e.state, e.claim, e.attempt, e.started = "running", j.Claim, j.Attempt, j.Started
		b.runs = append(b.runs, j.Run)
	}
}

// run draws a run, also one that is over.
func (b *book) run(rt *rapid.T) (Run, *entry, bool) {
	if len(b.runs) == 0 {
		rt.Skip("there is no run")
	}
	r := rapid.SampledFrom(b.runs).Draw(rt, "run")
	e := b.jobs[r.ID]
	return r, e, e.claim == r.Claim
}

func (b *book) complete(rt *rapid.T) {
	r, e, mine := b.run(rt)
	done, err := b.Complete(b.t.Context(), b.d.DB, []Run{r})
	if err != nil || (len(done) == 1) != mine {
		rt.Fatalf("run %v completes %v, %v; it is its own: %v", r, done, err, mine)
	}
	if mine {
		e.state, e.claim = Completed, 0
	}
}

func (b *book) end(rt *rapid.T) {
	r, e, mine := b.run(rt)
	end := End{Run: r, To: rapid.SampledFrom([]State{Available, Available, Completed, Failed}).Draw(rt, "to"), Outcome: Erred}
	end.Counts = end.To == Failed || end.To == Available && rapid.Bool().Draw(rt, "counts")
	states := b.settle(end)
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

func (b *book) cancel(rt *rapid.T) {
	if len(b.left) == 0 {
		rt.Skip("there is no job")
	}
	id := rapid.SampledFrom(b.left).Draw(rt, "job")
	e := b.jobs[id]
	was, err := b.Cancel(b.t.Context(), b.d.DB, id)
	switch {
	case err != nil:
		rt.Fatal(err)
	case e.state == Available && was == Available:
		e.state = Cancelled
	case e.state == "running" && was == "running":
		e.cancelled = true
	case was != "" || e.state == Available || e.state == "running":
		rt.Fatalf("job %d was %q, the book has %+v", id, was, e)
	}
}

func (b *book) reset(rt *rapid.T) {
	lost, err := b.Lost(b.t.Context(), b.d.DB, nil, 1000, deadSQL, b.me.String())
	if err != nil {
		b.t.Fatal(err)
	}
	back, ended, err := b.Reset(b.t.Context(), b.d.DB, lost, deadSQL, b.me.String())
	if err != nil {
		rt.Fatal(err)
	}
	wantBack, wantEnded := 0, 0
	for _, e := range b.jobs {
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

func (b *book) count(is func(*entry) bool) (n int) {
	for _, e := range b.jobs {
		if is(e) {
			n++
		}
	}
	return n
}

// check compares the book with the tables.
func (b *book) check() {
	got := b.rows(`
SELECT concat_ws(' ', id, state, coalesce(claim, 0), attempt, failures, resets) FROM (
	SELECT id, state, claim, attempt, failures, resets FROM jobs
	UNION ALL SELECT id, state, NULL, attempt, failures, resets FROM jobs_history) AS j`)
	var want []string
	for id, e := range b.jobs {
		want = append(want, fmt.Sprintln(id, e.state, e.claim, e.attempt, e.failures, e.resets))
	}
	for i := range want {
		want[i] = want[i][:len(want[i])-1]
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.rt.Fatalf("the tables have\n%q, the book\n%q", got, want)
	}
}

func (b *book) rows(query string) (all []string) {
	rows, err := b.d.DB.QueryContext(b.t.Context(), query)
	if err != nil {
		b.rt.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			b.rt.Fatal(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		b.rt.Fatal(err)
	}
	return all
}
