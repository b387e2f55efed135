package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

func newJobsSite(t testing.TB) site {
	t.Helper()
	s := at(pgtest.Empty(t))
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// add inserts a job in a state.
func (s site) add(t testing.TB, kind, state string) int64 {
	t.Helper()
	id := value[int64](t, s, `INSERT INTO jobs (kind, queue, args) VALUES ($1, 'mail', '{"to": 7}') RETURNING id`, kind)
	switch state {
	case "available":
	case "running":
		s.Exec(t, `UPDATE jobs SET state = 'running', claim = 7, claimed_by = gen_random_uuid(), claimed_at = clock_timestamp(), started_at = clock_timestamp() WHERE id = $1`, id)
	default:
		s.Exec(t, `WITH gone AS (DELETE FROM jobs WHERE id = $1 RETURNING *)
			INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state, code, error)
			SELECT id, kind, queue, priority, run_at, args, created_at, 1, 1, resets, max_resets, $2, 'E7', E'boom\x1b[2J' FROM gone`, id, state)
	}
	return id
}

func line(format string, args ...any) []string { return words(fmt.Sprintf(format, args...)) }

func TestJobs(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	failed, due, running := s.add(t, "welcome", "failed"), s.add(t, "welcome", "available"), s.add(t, "bill", "running")
	done := s.add(t, "bill", "completed")
	s.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, outcome, code, error) VALUES ($1, 1, 'error', 'E7', 'the first')`, failed)

	s.expect(t, exitDone, words("jobs queues"), "mail", "LATER")
	s.expect(t, exitDone, words("jobs list"), "welcome", "failed", `boom\u001b[2J`)
	if n := len(s.expect(t, exitDone, words("jobs list --state failed,completed --kind bill -o json")).data(t)["jobs"].([]any)); n != 1 {
		t.Errorf("%d jobs of the filter", n)
	}
	s.expect(t, exitDone, line("jobs show %d", failed), "the first", `{"to": 7}`, "E7")
	s.expect(t, exitRefused, words("jobs show 4711"), "no such job")

	s.expect(t, exitDone, line("jobs retry %d --reason r", failed), "runs as")
	s.expect(t, exitRefused, line("jobs retry %d --reason r", failed), "retried before")
	s.expect(t, exitUnable, line("jobs retry %d --again --reason r", failed), "--yes")
	s.ask(t, fmt.Sprint(failed), line("jobs retry %d --again --reason r", failed)...).is(t, exitDone, "done twice", "rerun of")
	s.expect(t, exitRefused, line("jobs retry %d --reason r", done), "completed")

	s.expect(t, exitUnable, line("jobs cancel %d --reason r", due), "--yes")
	s.expect(t, exitDone, line("jobs cancel %d --reason r --yes -o json", due), `"state":"cancelled"`)
	s.expect(t, exitDone, words("jobs cancel --kind bill --reason r --dry-run"), "would record")
	s.expect(t, exitDone, words("jobs cancel --kind bill --reason r --yes -o json"), fmt.Sprintf(`"asked":[%d]`, running), `"cancelled":[]`)
	s.expect(t, exitDone, words("jobs cancel --all --reason r --yes"), "done, 2")
	s.expect(t, exitRefused, line("jobs discard %d --reason r --yes", running), "running")
	s.expect(t, exitDone, line("jobs discard %d --reason r --yes", done))
	s.expect(t, exitRefused, line("jobs show %d", done), "no such job")
	s.expect(t, exitDone, line("jobs operations --job %d", failed), "retry", "rerun", "ann: r")
}

// Sequences that lie below ids are shown, found by the doctor, and raised with a reason.
func TestSequences(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	s.expect(t, exitDone, words("sequences"), "none lies below an id")
	s.Exec(t, `INSERT INTO jobs (id, kind) VALUES (70, 'welcome')`)
	s.expectFound(t, "sequences", levelFail, "jobs_id_seq", "sequences --raise")
	s.expect(t, exitDone, words("sequences"), "jobs_id_seq", "70")
	s.expect(t, exitUnable, words("sequences --raise"), "--reason")
	s.expect(t, exitDone, words("sequences --raise --reason r --dry-run"), "would record", `"now":70`)
	s.expect(t, exitDone, words("sequences -o json"), `"highest":70`)
	s.expect(t, exitDone, words("sequences --raise --reason r -o json"), `"count":1`)
	s.expect(t, exitDone, words("sequences"), "none lies below an id")
	s.expect(t, exitDone, words("jobs operations"), "raise", "ann: r")
	if id := s.add(t, "welcome", "available"); id != 71 {
		t.Errorf("the next job is %d", id)
	}
}

// A filter takes the jobs that it says, and leaves out those that another one does not take.
func TestFiltersOfJobs(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ids := []int64{s.add(t, "welcome", "available"), s.add(t, "bill", "available"), s.add(t, "welcome", "available"), s.add(t, "welcome", "running")}
	s.Exec(t, `UPDATE jobs SET queue = 'post' WHERE id IN ($1, $2)`, ids[2], ids[3])
	for _, c := range []struct{ filter, cancels, asks string }{
		{"--kind welcome --queue post", fmt.Sprint("[", ids[2], "]"), fmt.Sprint("[", ids[3], "]")},
		{"--queue mail --kind welcome", fmt.Sprint("[", ids[0], "]"), "[]"},
		{"--kind welcome --state running", "[]", fmt.Sprint("[", ids[3], "]")},
	} {
		s.expect(t, exitDone, words("jobs cancel --reason r --dry-run "+c.filter), `"cancelled": `+c.cancels, `"asked_to_end": `+c.asks)
	}
	if n := len(s.expect(t, exitDone, words("jobs list --kind welcome --queue post -o json")).data(t)["jobs"].([]any)); n != 2 {
		t.Errorf("%d jobs of the filter", n)
	}
}

// Jobs that come after those that were shown are not cancelled with them.
func TestCancelWhatWasShown(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	first := s.add(t, "welcome", "available")
	var later int64
	comes := answering{strings.NewReader("jobs\n"), func() { later = s.add(t, "welcome", "available") }}
	s.in(t, place{asks: true, in: comes}, words("jobs cancel --kind welcome --reason r")...).is(t, exitDone, fmt.Sprintf(`"cancelled": [%d]`, first), "done, 1")
	if n := value[int64](t, s, `SELECT max(id) FROM jobs`); n != later {
		t.Errorf("job %d is not there any more", later)
	}
	s.ask(t, "no", words("jobs cancel --all --reason r")...).is(t, exitRefused, "nothing was changed")

	// Nothing was shown, and one comes.
	comes = answering{strings.NewReader("jobs\n"), func() { s.add(t, "bill", "available") }}
	s.in(t, place{asks: true, in: comes}, words("jobs cancel --kind bill --reason r")...).is(t, exitRefused, `"cancelled": []`, "something else now")
	// One that has an id between those that were shown is committed only now.
	s.Exec(t, `UPDATE jobs SET id = id + 2 WHERE kind = 'bill'`)
	s.Exec(t, `INSERT INTO jobs (id, kind, queue, args) SELECT min(id) - 2, 'bill', 'mail', '{}' FROM jobs WHERE kind = 'bill'`)
	comes = answering{strings.NewReader("jobs\n"), func() {
		s.Exec(t, `INSERT INTO jobs (id, kind, queue, args) SELECT min(id) + 1, 'bill', 'mail', '{}' FROM jobs WHERE kind = 'bill'`)
	}}
	s.in(t, place{asks: true, in: comes}, words("jobs cancel --kind bill --reason r")...).is(t, exitRefused, "something else now")
	if n := value[int64](t, s, `SELECT count(*) FROM jobs WHERE kind = 'bill'`); n != 3 {
		t.Errorf("%d jobs are left", n)
	}
}

// Finished jobs that a filter takes are retried, or discarded, if they are those that were shown.
func TestChangeFinishedJobsOfAFilter(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	left := func(n int64) {
		t.Helper()
		if got := value[int64](t, s, `SELECT count(*) FROM jobs`); got != n {
			t.Errorf("%d jobs wait, want %d", got, n)
		}
	}
	first, second := s.add(t, "welcome", "failed"), s.add(t, "welcome", "failed")
	s.add(t, "welcome", "completed")
	s.expect(t, exitDone, words("jobs retry --kind welcome --reason r --dry-run"), fmt.Sprint("job ", first), fmt.Sprint("job ", second), `"jobs": 2`)
	s.expect(t, exitUnable, words("jobs retry --reason r --yes"), "an ID, or filters")
	s.expect(t, exitUnable, line("jobs retry %d --kind welcome --reason r --yes", first), "leave the filters out")
	s.expect(t, exitUnable, words("jobs retry --kind welcome --again --reason r --yes"), "--again is for one job")
	s.expect(t, exitUnable, words("jobs discard --reason r --yes"), "an ID, or filters")
	left(0)
	fails := answering{strings.NewReader("jobs\n"), func() { s.add(t, "welcome", "failed") }}
	s.in(t, place{asks: true, in: fails}, words("jobs retry --kind welcome --reason r")...).is(t, exitDone, `"jobs": 2`, "done, 2")
	left(2)
	s.ask(t, "no", words("jobs discard --kind welcome --reason r")...).is(t, exitRefused, "nothing was changed")
	goes := answering{strings.NewReader("jobs\n"), func() { s.Exec(t, `DELETE FROM jobs_history WHERE id = $1`, first) }}
	s.in(t, place{asks: true, in: goes}, words("jobs discard --kind welcome --reason r")...).is(t, exitRefused, "something else now")
	s.expect(t, exitDone, words("jobs discard --kind welcome --limit 1 --reason r --yes"), "done, 1")
	s.ask(t, "jobs", words("jobs discard --kind welcome --reason r")...).is(t, exitDone, "done, 1")
	if n := value[int64](t, s, `SELECT count(*) FROM jobs_history`); n != 1 {
		t.Errorf("%d jobs are in the history, want the one that has completed", n)
	}
}

// The alarms about failed jobs that were seen end, and begin again with the next failure. Jobs that
// were not shown are not acknowledged.
func TestAcknowledge(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
	first, second := s.add(t, "welcome", "failed"), s.add(t, "bill", "failed")
	told := func(failed int) {
		t.Helper()
		text := s.expect(t, exitDone, words("status")).out
		if strings.Contains(text, "wrong") != (failed > 0) || failed > 0 && !strings.Contains(text, fmt.Sprintf("queue mail: %d job", failed)) {
			t.Errorf("with %d failed jobs, the status is\n%s", failed, text)
		}
	}
	const verb = "jobs acknowledge mail --reason seen"
	told(2)
	s.expect(t, exitUnable, words("jobs acknowledge mail"), "--reason")
	s.expect(t, exitUnable, words(verb), "--yes")
	s.expect(t, exitUnable, words("jobs acknowledge * --reason seen --yes"), "each queue by its name")
	s.expect(t, exitDone, words(verb+" --dry-run"), "would record", `"jobs": 2`)
	s.ask(t, "post", words(verb)...).is(t, exitRefused, "nothing was changed")
	told(2)
	fails := answering{strings.NewReader("mail\n"), func() { s.add(t, "welcome", "failed") }}
	s.in(t, place{asks: true, in: fails}, words(verb)...).is(t, exitDone, `"jobs": 2`, "acknowledge of mail: done, 2")
	told(1)
	s.expectFound(t, "failed jobs", levelWarn, "mail has 1", "jobs acknowledge")
	// One that finished before those that are shown is committed only now.
	earlier := answering{strings.NewReader("mail\n"), func() {
		s.Exec(t, `UPDATE jobs_history SET finished_at = '2020-01-01' WHERE id = $1`, s.add(t, "welcome", "failed"))
	}}
	s.in(t, place{asks: true, in: earlier}, words(verb)...).is(t, exitRefused, `"jobs": 1`, "something else now")
	told(2)
	if data := s.expect(t, exitDone, words(verb+" --yes -o json")).data(t); data["count"] != 2.0 || data["through"] == nil {
		t.Errorf("printed %v", data)
	}
	told(0)
	if f := s.found(t, "failed jobs"); f.Level != levelOK {
		t.Errorf("the doctor found %+v", f)
	}
	if data := s.expect(t, exitDone, words(verb+" --yes -o json")).data(t); data["count"] != 0.0 || data["through"] != nil {
		t.Errorf("printed %v", data)
	}
	// None was shown, and one fails.
	s.in(t, place{asks: true, in: fails.again("mail")}, words(verb)...).is(t, exitRefused, `"jobs": 0`, "something else now")
	told(1)
	s.ask(t, "mail", words(verb)...).is(t, exitDone, "done, 1")
	told(0)

	s.expect(t, exitDone, words("jobs list --state failed"), "failed, acknowledged")
	s.expect(t, exitDone, line("jobs show %d", first), "acknowledged 20")
	s.expect(t, exitDone, words("jobs queues -o json"), `"failed":5`, `"unacknowledged":0`)
	s.expect(t, exitDone, words("jobs operations --queue mail"), "acknowledge", "ann: seen")
	s.expect(t, exitDone, line("jobs retry %d --reason r", first), "runs as")
	s.expect(t, exitDone, line("jobs discard %d --reason r --yes", second))
	s.expect(t, exitDone, words("jobs discard --queue mail --reason r --yes"), "done, 4")
}

// A job that runs, and was not shown, is not asked to end with those that were.
func TestCancelNoOtherThatRuns(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	s.add(t, "call", "available")
	between := s.add(t, "other", "running")
	s.add(t, "call", "available")
	comes := answering{strings.NewReader("jobs\n"), func() { s.Exec(t, `UPDATE jobs SET kind = 'call' WHERE id = $1`, between) }}
	s.in(t, place{asks: true, in: comes}, words("jobs cancel --kind call --reason r")...).is(t, exitRefused, "something else now")
	if n := value[int64](t, s, `SELECT count(*) FROM jobs WHERE cancel_at IS NOT NULL`); n != 0 {
		t.Errorf("%d jobs were asked to end", n)
	}
}

// A job or a queue that is another one now than what was shown is left alone.
func TestJobsMoved(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	waits := fmt.Sprint(s.add(t, "welcome", "available"))
	done := fmt.Sprint(s.add(t, "bill", "completed"))
	for _, c := range []struct {
		verb, name string
		before     string // SQL: what happens between what is shown and the answer
	}{
		{"cancel " + waits, waits, `UPDATE jobs SET state = 'running', claim = 1, claimed_by = gen_random_uuid(), attempt = 1`},
		{"retention mail 1h", "mail", `INSERT INTO jobs_queues (name, retention) VALUES ('mail', '5 hours')`},
		{"discard " + done, done, `INSERT INTO jobs_attempts (job_id, attempt, outcome) VALUES (` + done + `, 1, 'error')`},
	} {
		moves := answering{strings.NewReader(c.name + "\n"), func() { s.Exec(t, c.before) }}
		s.in(t, place{asks: true, in: moves}, line("jobs %s --reason r", c.verb)...).is(t, exitRefused, "nothing was changed", "something else now")
		if n := value[int64](t, s, `SELECT count(*) FROM jobs_operations`); n != 0 {
			t.Errorf("%s: %d operations", c.verb, n)
		}
		s.ask(t, c.name, line("jobs %s --reason r", c.verb)...).is(t, exitDone)
		s.Exec(t, `DELETE FROM jobs_operations`)
	}
}

// Of several who were shown the same and confirm it, one makes a job: the others have seen no
// job that it made.
func TestRerunOnce(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	id := fmt.Sprint(s.add(t, "bill", "completed"))
	for made := range int64(2) {
		outcomes := make([]outcome, 3)
		var looks, ends sync.WaitGroup
		looks.Add(len(outcomes))
		for i := range outcomes {
			look := sync.OnceFunc(func() {
				looks.Done()
				looks.Wait()
			})
			ends.Go(func() {
				defer look() // or the others wait for one that was shown nothing
				outcomes[i] = s.within(t.Context(), place{asks: true, in: answering{strings.NewReader(id + "\n"), look}}, line("jobs retry %s --again --reason r", id)...)
			})
		}
		ends.Wait()
		done := 0
		for _, o := range outcomes {
			if o.code == exitDone {
				done++
				continue
			}
			o.is(t, exitRefused, "nothing was changed", "something else now")
		}
		if n := value[int64](t, s, `SELECT count(*) FROM jobs`); done != 1 || n != made+1 {
			t.Errorf("%d of them were done, and there are %d jobs, want 1 and %d", done, n, made+1)
		}
	}
}

func TestQueuesAndSchedules(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 'h', clock_timestamp() - interval '1 hour')`)
	s.expect(t, exitDone, words("jobs pause mail --reason lunch"))
	s.expect(t, exitRefused, words("jobs pause mail --reason lunch"), "paused already")
	s.expect(t, exitDone, words("jobs cap mail 7 --reason r"))
	s.expect(t, exitRefused, words("jobs cap mail 7 --reason r"), "so already")
	s.expect(t, exitDone, words("jobs queues"), "7  paused by ann: lunch")
	s.expect(t, exitDone, words("jobs resume mail --reason r"))
	s.expect(t, exitDone, words("jobs cap mail none --reason r"))
	s.expect(t, exitDone, words("jobs pause * --reason r"))
	s.expect(t, exitDone, words("jobs schedules"), "nightly", "1h0m")
	s.expectFound(t, "schedules", levelWarn, "nightly since 1h", "start a process")
	s.expect(t, exitDone, words("jobs pause nightly --schedule --reason r"))
	s.expect(t, exitDone, words("jobs schedules"), "paused by ann since 20")
	s.expectFound(t, "schedules", levelWarn, "nightly paused by ann since 20", "start a process") // and nobody lets its ticks pass
	s.expect(t, exitDone, words("jobs resume nightly --schedule --reason r"))
	s.expect(t, exitRefused, words("jobs resume other --schedule --reason r"), "no such schedule")
	s.expect(t, exitDone, words("jobs operations --queue *"), "pause")
}
