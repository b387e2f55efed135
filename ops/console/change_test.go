package console_test

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/ops/console"
	"github.com/pgfrontier/worker/store"
)

// previewed is the JSON of a preview.
type previewed struct {
	Records []struct {
		Name   string
		Kind   string
		Detail json.RawMessage
	}
	By ops.By
}

// stuck is a console with a consumer "c" at position 2 of 5, which has two dead letters.
func stuck(t testing.TB, o console.Options) *site {
	t.Helper()
	s := newSite(t, o)
	s.append(t, happened(5)...)
	s.Exec(t, `UPDATE events SET aggregate_id = 'replayed' WHERE global_position = 2`)
	s.place(t, "c", 2)
	s.settle(t, 5)
	s.letters(t, "c", "boom", 2)
	return s
}

// What the preview of each change shows is what is then recorded, and by whom.
func TestChangesAsPreviewed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct {
		page, form string   // where the form is, and what it has
		typed      []string // by the operator
		before     string   // SQL
		back       string
	}{
		"pause":          {page: "consumer?name=c", form: `value="pause"`, back: "consumer?name=c&done=pause"},
		"resume":         {page: "consumer?name=c", form: `value="resume"`, before: `UPDATE consumer_checkpoints SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch'`, back: "consumer?name=c&done=resume"},
		"skip":           {page: "consumer?name=c", form: `value="skip"`, back: "consumer?name=c&done=skip"},
		"back":           {page: "consumer?name=c", form: `value="reset"`, typed: []string{"position", "0"}, back: "consumer?name=c&done=reset"},
		"forth":          {page: "consumer?name=c", form: `value="reset"`, typed: []string{"position", "4"}, back: "consumer?name=c&done=reset"},
		"partition":      {page: "consumer?name=c", form: `value="partition"`, typed: []string{"number", "4"}, back: "consumer?name=c&done=partition"},
		"retry one":      {page: "letter?consumer=c&position=2", form: `value="retry"`, back: "letters?consumer=c&done=retry"},
		"discard one":    {page: "letter?consumer=c&position=2", form: `value="discard"`, back: "letters?consumer=c&done=discard"},
		"retry all":      {page: "letters?consumer=c&error=boom", form: `value="retry"`, back: "letters?consumer=c&done=retry"},
		"discard all":    {page: "letters?consumer=c&type=Happened&older=1us", form: `value="discard"`, back: "letters?consumer=c&done=discard"},
		"replay":         {page: "consumer?name=c", form: `value="replay"`, typed: []string{"aggregate_type", "Order", "aggregate_id", "replayed"}, back: "letters?consumer=c&done=replay"},
		"skip of a unit": {page: "consumer?name=d", form: `value="skip"`, before: `UPDATE consumer_checkpoints SET revision = 1 WHERE consumer_name = 'd#800-fff'`, back: "consumer?name=d&done=skip"},
		"of a unit":      {page: "consumer?name=d", form: `value="resume"`, back: "consumer?name=d&done=resume"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stuck(t, console.Options{Access: operators})
			s.split(t, "d", 1, 2)
			if change.before != "" {
				s.Exec(t, change.before)
			}
			form := with(s.get(t, change.page).expect(t, http.StatusOK).hidden(t, change.form), append(change.typed, "reason", "order 4711 has no customer")...)
			var p previewed
			shown := s.do(t, http.MethodPost, "change", form, "Accept", "application/json").expect(t, http.StatusOK)
			if err := json.Unmarshal([]byte(shown.body), &p); err != nil || len(p.Records) != 1 {
				t.Fatalf("%v:\n%s", err, shown.body)
			}
			confirm := s.preview(t, form)
			if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != 0 {
				t.Fatalf("a preview has recorded %d operations", n)
			}
			made := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
			if to := made.header.Get("Location"); to != change.back {
				t.Errorf("goes on to %q, want %q", to, change.back)
			}
			if after := s.get(t, change.back).expect(t, http.StatusOK); !strings.Contains(after.body, "Done: ") {
				t.Errorf("the page does not say that it is done:\n%s", after.body)
			}
			var all struct{ Operations []ops.Operation }
			s.read(t, "operations", &all)
			if len(all.Operations) != 1 {
				t.Fatalf("%d operations", len(all.Operations))
			}
			op, would := all.Operations[0], p.Records[0]
			if got, want := fmt.Sprint(op.Consumer, op.Kind, string(op.Detail)), fmt.Sprint(would.Name, would.Kind, string(would.Detail)); got != want {
				t.Errorf("recorded\n%s, previewed was\n%s", got, want)
			}
			if op.By != (ops.By{Operator: "ann", Reason: "order 4711 has no customer"}) || p.By != op.By {
				t.Errorf("by %v, previewed was %v", op.By, p.By)
			}
			// Who sends the form again changes nothing more, or asks for the same once more.
			s.do(t, http.MethodPost, "change", confirm)
			if n := s.count(t, `SELECT count(*) FROM consumer_operations WHERE operation IN ('pause', 'resume', 'skip', 'reset', 'discard', 'partition')`); n > 1 {
				t.Errorf("%d operations after the form was sent twice", n)
			}
		})
	}
}

// Two operators have decided the same. One does it, and the other is told.
func TestOperatorsRace(t *testing.T) {
	t.Parallel()
	for _, form := range []url.Values{
		{"kind": {"pause"}},
		{"kind": {"skip"}, "position": {"3"}},
		{"kind": {"reset"}, "position": {"1"}},
		{"kind": {"partition"}, "number": {"3"}},
		{"kind": {"discard"}, "position": {"1"}},
		{"kind": {"discard"}, "all": {"1"}},
	} {
		t.Run(form.Encode(), func(t *testing.T) {
			t.Parallel()
			s := stuck(t, console.Options{Access: operators})
			with(form, "on", "consumer", "name", "c", "reason", "r", "revision", "0")
			var group sync.WaitGroup
			var confirm, statuses = make([]url.Values, 2), make([]int, 2)
			for i, who := range []string{"ann", "bob"} {
				confirm[i] = s.preview(t, form, "Operator", who)
			}
			for i, who := range []string{"ann", "bob"} {
				group.Go(func() { statuses[i] = s.do(t, http.MethodPost, "change", confirm[i], "Operator", who).status })
			}
			group.Wait()
			if statuses[0]+statuses[1] != http.StatusSeeOther+http.StatusConflict {
				t.Errorf("answers %v, want one 303 and one 409", statuses)
			}
			if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != 1 {
				t.Errorf("%d operations", n)
			}
		})
	}
}

// Whatever lost the answer to a COMMIT, nobody is told that nothing was changed.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{io.ErrUnexpectedEOF, driver.ErrBadConn, context.DeadlineExceeded, context.Canceled, ops.ErrUnchanged} {
		status, hint := console.Judged(fmt.Errorf("pause: %w", &ops.UnknownOutcomeError{Operation: 9, Err: cause}))
		if status != http.StatusServiceUnavailable || !strings.Contains(hint, "Read the operations") || strings.Contains(hint, "Nothing was changed") {
			t.Errorf("%v: status %d, %s", cause, status, hint)
		}
	}
}

// Where a consumer has moved since its page was drawn, a form that is for one that stands
// still is refused, at once and after its preview.
func TestMoved(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch'`)
	page := s.get(t, "consumer?name=c")
	for kind, typed := range map[string][]string{"skip": nil, "resume": nil, "reset": {"position", "1"}} {
		form := with(page.hidden(t, `value="`+kind+`"`), append(typed, "reason", "r")...)
		form.Set("revision", fmt.Sprint(s.count(t, `SELECT revision FROM consumer_checkpoints`)))
		confirm := s.preview(t, form)
		s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
		for _, f := range []url.Values{form, confirm} {
			if got := s.do(t, http.MethodPost, "change", f).expect(t, http.StatusConflict); !strings.Contains(got.body, "Nothing was changed") {
				t.Error(got.body)
			}
		}
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Errorf("%d operations", n)
	}
}

// A consumer that moves between the preview and the pause is paused.
func TestPauseOfOneThatRuns(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	confirm := s.preview(t, with(s.get(t, "consumer?name=c").hidden(t, `value="pause"`), "reason", "r"))
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1, last_position = last_position + 1`) // as a batch does
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
}

// A log that goes on between the preview and the change does not change a reset forward.
func TestResetWhileTheLogGoesOn(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch'`)
	confirm := s.preview(t, with(s.get(t, "consumer?name=c").hidden(t, `value="reset"`), "position", "4", "reason", "r"))
	s.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) VALUES ('Order', 'new', 1, gen_random_uuid(), 'Happened', '')`)
	s.Exec(t, `UPDATE consumer_checkpoints_settled SET settled = settled + 1`)
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
}

// Of a consumer that runs, an aggregate is replayed if it has as many events as were shown.
func TestReplayOfOneThatRuns(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	s.Exec(t, `UPDATE events SET aggregate_id = 'it' WHERE global_position = 3`)
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1, last_position = 3`)
	form := with(s.get(t, "consumer?name=c").hidden(t, `value="replay"`), "reason", "r", "aggregate_type", "Order", "aggregate_id", "it")
	confirm := s.preview(t, form)
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1, last_position = 4`) // as a batch does
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	if body := s.get(t, "letters?consumer=c").body; strings.Count(body, "its aggregate is replayed") != 1 {
		t.Errorf("what is replayed is not marked:\n%s", body)
	}
	if body := s.get(t, "letter?consumer=c&position=1").body; strings.Contains(body, "is replayed") {
		t.Errorf("a dead letter is marked as replayed:\n%s", body)
	}
	confirm = s.preview(t, form)
	s.Exec(t, `UPDATE events SET aggregate_id = 'it', aggregate_version = 2 WHERE global_position = 4`) // there is one more
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)
	for _, lacks := range []string{"aggregate_type", "aggregate_id"} {
		s.do(t, http.MethodPost, "change", with(form, lacks, "")).expect(t, http.StatusBadRequest)
		with(form, lacks, "nothing")
	}
	s.do(t, http.MethodPost, "change", form).expect(t, http.StatusNotFound)
}

// A consumer has passed the events of a type that its code did not select then.
func TestReplayTypes(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 5, scope = '{"types": ["Order"]}', scope_since = 0`)
	s.Exec(t, `DELETE FROM consumer_dead_letters`)
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
		VALUES ('c', 'scope', '{"from": {"types": ["Invoice"]}, "to": {"types": ["Order"]}, "position": 3, "open": []}', 'worker', 'a build')`)
	form := with(s.get(t, "consumer?name=c").hidden(t, `value="replay types"`), "reason", "r", "aggregate_type", "Order")
	confirm := s.preview(t, form)
	made := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	if to := made.header.Get("Location"); to != "letters?consumer=c&done=replay+types" && to != "letters?consumer=c&done=replay%20types" {
		t.Errorf("goes on to %q", to)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_dead_letters WHERE replay AND global_position <= 3`); n != 3 {
		t.Errorf("%d events are delivered", n)
	}
	s.do(t, http.MethodPost, "change", with(form, "aggregate_type", "Invoice")).expect(t, http.StatusBadRequest)
	s.do(t, http.MethodPost, "change", with(form, "aggregate_type", "")).expect(t, http.StatusBadRequest)
}

// Of a consumer that runs, dead letters are discarded as they were shown, or not at all.
func TestDeadLettersOfARunningConsumer(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	confirm := s.preview(t, with(s.get(t, "letters?consumer=c").hidden(t, `value="discard"`), "reason", "r"))
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1, last_position = 3`) // as a batch does
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		SELECT 'c', global_position, aggregate_type, aggregate_id, event_id, event_type, 'new', 1 FROM events WHERE global_position = 3`)
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)
	if n := s.count(t, `SELECT count(*) FROM consumer_dead_letters`); n != 3 {
		t.Errorf("%d dead letters are left", n)
	}
	confirm = s.preview(t, with(s.get(t, "letters?consumer=c").hidden(t, `value="discard"`), "reason", "r"))
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1, last_position = 4`)
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	if n := s.count(t, `SELECT count(*) FROM consumer_dead_letters`); n != 0 {
		t.Errorf("%d dead letters are left", n)
	}
}

// A form that lacks something, or asks for what there is not, is refused in words.
func TestBadForms(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	good := url.Values{"on": {"consumer"}, "kind": {"pause"}, "name": {"c"}, "reason": {"r"}, "revision": {"0"}}
	for name, bad := range map[string]struct {
		change []string
		status int
	}{
		"no reason":       {[]string{"reason", " "}, 400},
		"a long reason":   {[]string{"reason", strings.Repeat("x", 2_001)}, 400},
		"no revision":     {[]string{"kind", "resume", "revision", ""}, 400},
		"no number":       {[]string{"revision", "x"}, 400},
		"no kind":         {[]string{"kind", "split"}, 400},
		"no position":     {[]string{"kind", "skip"}, 400},
		"no partitions":   {[]string{"kind", "partition"}, 400},
		"many partitions": {[]string{"kind", "partition", "number", "99999999999"}, 400},
		"nothing":         {[]string{"on", "nothing"}, 400},
		"no consumer":     {[]string{"name", "nobody"}, 404},
		"not next":        {[]string{"kind", "skip", "position", "5"}, 409},
		"not settled":     {[]string{"kind", "reset", "position", "9"}, 409},
		"no letter":       {[]string{"kind", "discard", "position", "5"}, 409},
		"none match":      {[]string{"kind", "discard", "all", "1", "error", "other"}, 409},
		"too long":        {[]string{"error", strings.Repeat("x", 70_000)}, 400},
	} {
		form := url.Values{}
		for k, v := range good {
			form[k] = v
		}
		for _, step := range []string{"", "make"} {
			if got := s.do(t, http.MethodPost, "change", with(form, append(bad.change, "step", step)...)); got.status != bad.status {
				t.Errorf("%s: status %d, want %d:\n%s", name, got.status, bad.status, got.body)
			}
		}
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Errorf("%d operations", n)
	}
}

// Jobs, queues and schedules are changed as previewed, too.
func TestChangesOfJobs(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 's', clock_timestamp())`)
	open, waits, failed, finished := s.enqueue(t, jobs.StateAvailable), s.enqueue(t, jobs.StateAvailable), s.enqueue(t, jobs.StateFailed), s.enqueue(t, jobs.StateCompleted)
	job := func(id int64) string { return fmt.Sprint("job?id=", id) }
	s.Exec(t, `UPDATE jobs SET run_at = clock_timestamp() + interval '1 hour' WHERE id = $1`, waits)
	for i, change := range []struct {
		page, form string
		typed      []string
	}{
		{job(open), `value="cancel"`, nil},
		{job(waits), `value="retry"`, nil},
		{job(failed), `value="retry"`, nil},
		{job(failed), `value="discard"`, nil},
		{job(finished), `value="rerun"`, nil},
		{"queues", `value="queue"`, []string{"name", "slow", "kind", "pause"}},
		{"queues", `value="queue"`, []string{"name", "slow", "kind", "resume"}},
		{"queues", `value="queue"`, []string{"name", "*", "kind", "cap", "number", "0"}},
		{"queues", `value="queue"`, []string{"name", "*", "kind", "cap", "number", ""}},
		{"schedules", `value="schedule"`, []string{"name", "nightly", "kind", "pause"}},
		{"schedules", `value="schedule"`, []string{"name", "nightly", "kind", "resume"}},
	} {
		form := with(s.get(t, change.page).expect(t, http.StatusOK).hidden(t, change.form), append(change.typed, "reason", "r")...)
		var p previewed
		shown := s.do(t, http.MethodPost, "change", form, "Accept", "application/json").expect(t, http.StatusOK)
		if err := json.Unmarshal([]byte(shown.body), &p); err != nil || len(p.Records) != 1 {
			t.Fatalf("%v:\n%s", err, shown.body)
		}
		confirm := s.preview(t, form)
		if n := s.count(t, `SELECT count(*) FROM jobs_operations`); n != int64(i) {
			t.Fatalf("a preview has recorded %d operations", n-int64(i))
		}
		made := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
		s.get(t, made.header.Get("Location")).expect(t, http.StatusOK)
		var all struct{ Operations []ops.Operation }
		if s.read(t, "queues", &all); len(all.Operations) != i+1 || string(all.Operations[0].Kind) != p.Records[0].Kind || all.Operations[0].By != p.By {
			t.Errorf("%v: recorded %v, previewed was %v", change, all.Operations, p)
		}
		if kind := form.Get("kind"); kind == "cancel" || kind == "retry" && change.page == job(failed) || kind == "pause" {
			if got := s.do(t, http.MethodPost, "change", confirm); got.status != http.StatusConflict {
				t.Errorf("%v sent twice: status %d", change, got.status)
			}
		}
	}
}

// A form that makes a job is of use once: who sends it again has seen no job that it made.
func TestRerunOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	form := with(s.get(t, fmt.Sprint("job?id=", s.enqueue(t, jobs.StateCompleted))).hidden(t, `value="rerun"`), "reason", "r")
	for made := range int64(2) {
		confirm := s.preview(t, form)
		var group sync.WaitGroup
		statuses := make([]int, 3)
		for i := range statuses {
			group.Go(func() { statuses[i] = s.do(t, http.MethodPost, "change", confirm).status })
		}
		group.Wait()
		if sum := statuses[0] + statuses[1] + statuses[2]; sum != http.StatusSeeOther+2*http.StatusConflict {
			t.Errorf("answers %v, want one 303 and two 409", statuses)
		}
		if n := s.count(t, `SELECT count(*) FROM jobs`); n != made+1 {
			t.Errorf("%d jobs, want %d", n, made+1)
		}
	}
}

// A job or a queue that is another one now than the preview has shown is left alone.
func TestJobsMoved(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	waits := s.enqueue(t, jobs.StateAvailable)
	for name, moved := range map[string]struct {
		form   url.Values
		before string // SQL: what happens between the preview and the change
	}{
		"runs": {url.Values{"on": {"job"}, "kind": {"cancel"}, "position": {fmt.Sprint(waits)}}, `UPDATE jobs SET state = 'running', claim = 1, claimed_by = gen_random_uuid(), attempt = 1`},
		"cap":  {url.Values{"on": {"queue"}, "kind": {"cap"}, "name": {"slow"}, "number": {"3"}}, `INSERT INTO jobs_queues (name, max_running) VALUES ('slow', 5)`},
	} {
		confirm := s.preview(t, with(moved.form, "reason", "r"))
		s.Exec(t, moved.before)
		if got := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict); !strings.Contains(got.body, "Nothing was changed") {
			t.Errorf("%s:\n%s", name, got.body)
		}
		if n := s.count(t, `SELECT count(*) FROM jobs_operations`); n != 0 {
			t.Errorf("%s: %d operations", name, n)
		}
		s.do(t, http.MethodPost, "change", s.preview(t, moved.form)).expect(t, http.StatusSeeOther)
		s.Exec(t, `DELETE FROM jobs_operations`)
	}
}

// What was never previewed is not made, except a pause.
func TestWithoutPreview(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	for _, form := range []url.Values{
		{"on": {"consumer"}, "kind": {"skip"}, "name": {"c"}, "position": {"3"}},
		{"on": {"consumer"}, "kind": {"discard"}, "name": {"c"}, "all": {"1"}},
		{"on": {"consumer"}, "kind": {"partition"}, "name": {"c"}, "number": {"3"}},
		{"on": {"queue"}, "kind": {"pause"}, "name": {"slow"}},
	} {
		s.do(t, http.MethodPost, "change", with(form, "reason", "r", "revision", "0", "step", "make")).expect(t, http.StatusConflict)
	}
	if n := s.count(t, `SELECT (SELECT count(*) FROM consumer_operations) + (SELECT count(*) FROM jobs_operations)`); n != 0 {
		t.Errorf("%d operations", n)
	}
}

var nextPage = regexp.MustCompile(`<a rel="next" href="([^"]*)"`)

// expectNext demands that the link to the next page asks for what its page has asked for, from a key on.
func (a answer) expectNext(t testing.TB, page, key string) {
	t.Helper()
	link := nextPage.FindStringSubmatch(a.body)
	if link == nil {
		t.Fatalf("%s has no next page:\n%s", page, a.body)
	}
	path, query, _ := strings.Cut(page, "?")
	to, err := url.Parse(html.UnescapeString(link[1]))
	if err != nil || strings.TrimPrefix(to.Path, "./") != path {
		t.Fatalf("%s leads to %s: %v", page, link[1], err)
	}
	asked, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	next := to.Query()
	for name := range asked {
		if name != key && next.Get(name) != asked.Get(name) {
			t.Errorf("%s leads to %s, without its %s", page, link[1], name)
		}
	}
	if next.Get(key) == "" || next.Get(key) == asked.Get(key) {
		t.Errorf("%s leads to %s, which is the same page", page, link[1])
	}
}

// Pages follow each other by keys: each row is on one of them.
func TestPaging(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	const n = 120
	s.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT i, 'Order', 'a', i, gen_random_uuid(), 'Happened', '' FROM generate_series(1, $1::int) AS i`, n)
	s.place(t, "c", n)
	s.letters(t, "c", "boom", n)
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) SELECT 'c', 'pause', '{}', 'ann', 'r' FROM generate_series(1, $1::int)`, n)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
		SELECT 'c', gen_random_uuid(), i, i, 1, 'open', i, i FROM generate_series(1, $1::int) AS i`, n)
	s.Exec(t, `INSERT INTO jobs (kind, queue, args) SELECT 'mail', 'slow', '{}' FROM generate_series(1, $1::int)`, n)
	s.Exec(t, `INSERT INTO jobs_operations (job_id, queue, operation, detail, operator, reason) SELECT i, 'slow', 'cancel', '{}', 'ann', 'r' FROM generate_series(1, $1::int) AS i`, n)
	type row struct{ ID, Position int64 }
	for page, key := range map[string]string{"letters?consumer=c&error=boom&type=Happened&aggregate=Order&older=1us": "after", "operations?consumer=c": "before", "operations?": "before", "gaps?consumer=c&open=1": "before",
		"jobs?queue=slow&kind=mail&state=available": "before", "queues?": "before"} {
		seen, next := map[row]bool{}, ""
		for pages := 0; ; pages++ {
			var data struct {
				Letters, Operations, Gaps, Jobs []row
				Next                            int64
			}
			s.read(t, page+next, &data)
			for _, r := range append(append(append(data.Letters, data.Operations...), data.Gaps...), data.Jobs...) {
				if seen[r] {
					t.Fatalf("%s: %v comes twice", page, r)
				}
				seen[r] = true
			}
			link := fmt.Sprintf("%s=%d", key, data.Next)
			if body := s.get(t, page+next).body; strings.Contains(body, `rel="next"`) != (data.Next != 0) || data.Next != 0 && !strings.Contains(body, link) {
				t.Errorf("%s%s: the link to the next page, %s:\n%s", page, next, link, body)
			}
			if data.Next == 0 || pages > n {
				break
			}
			s.get(t, page+next).expectNext(t, page+next, key)
			next = "&" + link
		}
		if len(seen) != n {
			t.Errorf("%s has %d rows on its pages, want %d", page, len(seen), n)
		}
	}
}

// The application's decoder shows payloads. What it cannot do is said.
func TestPayloadDecoder(t *testing.T) {
	t.Parallel()
	decode := func(e store.PersistedEvent) (string, error) {
		switch e.EventType {
		case "Panics":
			panic("unknown version")
		case "Fails":
			return "", fmt.Errorf("no key for %s", e.AggregateID)
		}
		return "decoded " + strings.ToUpper(string(e.Payload)), nil
	}
	s := newSite(t, console.Options{Access: operators, Payload: decoder(decode)})
	s.append(t, store.Event{AggregateType: "Order", AggregateID: "1", EventType: "Happened", Payload: []byte("<b>x")},
		store.Event{AggregateType: "Order", AggregateID: "2", EventType: "Fails", Payload: []byte{0xff, 0}}, store.Event{AggregateType: "Order", AggregateID: "3", EventType: "Panics", Payload: []byte{0}})
	s.place(t, "c", 3)
	s.letters(t, "c", "boom", 3)
	for position, want := range map[int]string{1: "decoded &lt;B&gt;X", 2: "no key for 2", 3: "the decoder panicked: unknown version"} {
		for _, page := range []string{"event?", "letter?consumer=c&"} {
			if got := s.get(t, fmt.Sprintf("%sposition=%d", page, position)).expect(t, http.StatusOK); !strings.Contains(got.body, want) {
				t.Errorf("%s%d does not show %q:\n%s", page, position, want, got.body)
			}
		}
	}
	plain := newSite(t, console.Options{Access: operators})
	plain.append(t, store.Event{AggregateType: "Order", AggregateID: "1", EventType: "Binary", Payload: []byte{0xff, 0, 'a'}})
	if got := plain.get(t, "event?position=1"); !strings.Contains(got.body, "ff 00 61") {
		t.Errorf("bytes are not shown:\n%s", got.body)
	}
}
