package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops/console"
)

// A consumer is retired by who has seen what goes, and types its name. Nothing else
// retires it.
func TestRetire(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	s.place(t, "other", 1)
	form := with(s.get(t, "consumer?name=c").hidden(t, `value="retire"`), "reason", "replaced by d")
	shown := s.do(t, http.MethodPost, "change", form).expect(t, http.StatusOK)
	for _, want := range []string{"Type c to confirm", "<dt>dead letters deleted</dt><dd>2</dd>", "<dt>position</dt><dd>2</dd>"} {
		if !strings.Contains(shown.body, want) {
			t.Errorf("the preview lacks %q:\n%s", want, shown.body)
		}
	}
	confirm := shown.hidden(t, `name="step" value="make"`)
	for _, typed := range []string{"", "other", "c "} {
		s.do(t, http.MethodPost, "change", with(confirm, "typed", typed)).expect(t, http.StatusBadRequest)
	}
	with(confirm, "typed", "c")

	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid) VALUES (gen_random_uuid(), '{c}', 'host7', 4242)`)
	if got := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict); !strings.Contains(got.body, "host7") || strings.Contains(got.body, "was faster") {
		t.Errorf("it does not say which worker has code for it:\n%s", got.body)
	}
	s.Exec(t, `DELETE FROM worker_nodes`)
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1 WHERE consumer_name = 'c'`)
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision - 1 WHERE consumer_name = 'c'`)
	s.Exec(t, `DELETE FROM consumer_dead_letters WHERE global_position = 1`)
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict) // it would delete another number
	if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Fatalf("%d operations", n)
	}

	confirm = with(s.preview(t, form), "typed", "c")
	made := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	if to := made.header.Get("Location"); to != "./?&done=retire" {
		t.Errorf("goes on to %q", to)
	}
	if after := s.get(t, strings.TrimPrefix(made.header.Get("Location"), "./")).expect(t, http.StatusOK); !strings.Contains(after.body, "Done: retire") || strings.Contains(after.body, `data-key="c"`) {
		t.Errorf("after it:\n%s", after.body)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_operations WHERE operation = 'retire' AND operator = 'ann' AND consumer_name = 'c'`); n != 1 {
		t.Errorf("%d operations", n)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_checkpoints`); n != 1 {
		t.Errorf("%d checkpoints are left, want 1", n)
	}
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusNotFound)
}

// A consumer is renamed, and what is left under the old name can only be retired.
func TestRename(t *testing.T) {
	t.Parallel()
	may := func(*http.Request) console.Grant {
		return console.Grant{Operator: "ann", Level: console.Operate, Allow: func(a console.Action) bool { return a.Name != "secret" }}
	}
	s := stuck(t, console.Options{Access: may})
	s.place(t, "other", 1)
	form := with(s.get(t, "consumer?name=c").hidden(t, `value="rename"`), "reason", "r")
	for to, status := range map[string]int{"": http.StatusBadRequest, "d#000-7ff": http.StatusBadRequest, "other": http.StatusConflict, "secret": http.StatusForbidden} {
		s.do(t, http.MethodPost, "change", with(form, "to", to)).expect(t, status)
	}
	confirm := s.preview(t, with(form, "to", "d"))
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1 WHERE consumer_name = 'c'`)
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision - 1 WHERE consumer_name = 'c'`)
	made := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	if to := made.header.Get("Location"); to != "consumer?name=d&done=rename" {
		t.Errorf("goes on to %q", to)
	}
	if got := s.get(t, "consumer?name=c").expect(t, http.StatusOK); !strings.Contains(got.body, "renamed to d: r") || strings.Contains(got.body, `value="resume"`) || !strings.Contains(got.body, `value="retire"`) {
		t.Errorf("the old name's page is\n%s", got.body)
	}
	if got := s.get(t, "").expect(t, http.StatusOK); strings.Contains(got.body, "1 consumer paused") || strings.Contains(got.body, "9,223,372") {
		t.Errorf("the overview is\n%s", got.body)
	}
}

// The next version of a consumer begins as a shadow, and gets the effects while both run.
func TestShadowAndSwitch(t *testing.T) {
	t.Parallel()
	may := func(*http.Request) console.Grant {
		return console.Grant{Operator: "ann", Level: console.Operate, Allow: func(a console.Action) bool { return a.Name != "secret" }}
	}
	s := newSite(t, console.Options{Access: may})
	s.place(t, "c", 1)
	form := with(s.get(t, "consumer?name=c").hidden(t, `value="shadow"`), "reason", "r")
	for to, status := range map[string]int{"": http.StatusBadRequest, "c": http.StatusConflict, "secret": http.StatusForbidden} {
		s.do(t, http.MethodPost, "change", with(form, "to", to)).expect(t, status)
	}
	made := s.do(t, http.MethodPost, "change", s.preview(t, with(form, "to", "d"))).expect(t, http.StatusSeeOther)
	if to := made.header.Get("Location"); to != "consumer?name=d&done=shadow" {
		t.Errorf("goes on to %q", to)
	}
	form = with(s.get(t, "consumer?name=d").hidden(t, `value="switch"`), "reason", "r")
	for to, status := range map[string]int{"": http.StatusBadRequest, "d": http.StatusBadRequest, "nobody": http.StatusNotFound, "secret": http.StatusForbidden} {
		s.do(t, http.MethodPost, "change", with(form, "to", to)).expect(t, status)
	}
	confirm := s.preview(t, with(form, "to", "c"))
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = last_position + 1, revision = revision + 1`) // both run
	made = s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	if to := made.header.Get("Location"); to != "consumer?name=d&done=switch" {
		t.Errorf("goes on to %q", to)
	}
	for name, kind := range map[string]string{"c": "switch", "d": "shadow"} {
		if got := s.get(t, "consumer?name="+name).expect(t, http.StatusOK); !strings.Contains(got.body, `name="kind" value="`+kind+`"`) {
			t.Errorf("the page of %s has no form for a %s:\n%s", name, kind, got.body)
		}
	}
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)

	s.append(t, happened(3)...)
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 3 WHERE consumer_name = 'c'`) // d is at 1
	form = with(s.get(t, "consumer?name=c").hidden(t, `value="switch"`), "reason", "r", "to", "d")
	if got := s.do(t, http.MethodPost, "change", form).expect(t, http.StatusConflict); !strings.Contains(got.body, "has passed position 3 without its effect") || strings.Contains(got.body, "deadline") {
		t.Errorf("a switch to a shadow that is ahead: %s", got.body)
	}
}

// A schedule is forgotten without its name: a program that has it brings it back.
func TestRetireSchedule(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 's', clock_timestamp())`)
	confirm := s.preview(t, url.Values{"on": {"schedule"}, "kind": {"retire"}, "name": {"nightly"}, "reason": {"r"}})
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	if n := s.count(t, `SELECT count(*) FROM jobs_schedules`); n != 0 {
		t.Errorf("%d schedules are left", n)
	}
}
