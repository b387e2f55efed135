package console_test

import (
	"context"
	"database/sql"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/ops/console"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// named is a consumer of a build.
type named string

func (n named) Name() string                                              { return string(n) }
func (named) Handle(context.Context, *sql.Tx, store.PersistedEvent) error { return nil }

// builds returns what a build prints.
func builds(t *testing.T, all ...consumer.Consumer) string {
	t.Helper()
	text, err := worker.Describe(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page of a plan says what a build would change. It takes the build as a form, also from senders
// who may change nothing.
func TestPlanOfABuild(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.place(t, "c", 1)
	if got := s.get(t, "plan").expect(t, http.StatusOK); strings.Contains(got.body, "<table>") || strings.Contains(got.body, `value="begin"`) {
		t.Errorf("without a build, for a reader: %s", got.body)
	}
	form := url.Values{"build": {builds(t, named("c"), named("d"))}}
	got := s.do(t, http.MethodPost, "plan", form).expect(t, http.StatusOK)
	for _, want := range []string{"would change something", "new: begins at the first event", "<th scope=\"row\">c</th><td>no</td>"} {
		if !strings.Contains(got.body, want) {
			t.Errorf("no %q in %s", want, got.body)
		}
	}
	if got := s.do(t, http.MethodPost, "plan", url.Values{"build": {builds(t, named("c"))}}).expect(t, http.StatusOK); !strings.Contains(got.body, "would change nothing") {
		t.Errorf("the build that runs: %s", got.body)
	}
	if got := s.do(t, http.MethodPost, "plan", form, "Accept", "application/json").expect(t, http.StatusOK); !strings.HasPrefix(got.body, `{"Changes":true,`) {
		t.Errorf("as JSON: %s", got.body)
	}
	s.do(t, http.MethodPost, "plan", url.Values{"build": {"<b>"}}).expect(t, http.StatusBadRequest)
	s.do(t, http.MethodPost, "plan", url.Values{"build": {strings.Repeat("x", 3<<20)}}).expect(t, http.StatusBadRequest)
	s.do(t, http.MethodPost, "plan", form, "Origin", "https://elsewhere.example", "Sec-Fetch-Site", "cross-site").expect(t, http.StatusForbidden)
}

// A consumer that is not deployed yet begins after a position, up to which the log is settled.
func TestBeginAfterAPosition(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.append(t, happened(3)...)
	s.settle(t, 2)
	s.place(t, "c", 1)
	form := with(s.get(t, "plan").hidden(t, `value="begin"`), "reason", "r", "name", "d")
	for position, status := range map[string]int{"": http.StatusBadRequest, "x": http.StatusBadRequest, "9": http.StatusConflict} {
		s.do(t, http.MethodPost, "change", with(form, "position", position)).expect(t, status)
	}
	confirm := s.preview(t, with(form, "position", "2"))
	s.settle(t, 3) // the log goes on meanwhile
	made := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	if to := made.header.Get("Location"); to != "consumer?name=d&done=begin" {
		t.Errorf("goes on to %q", to)
	}
	if n := s.count(t, `SELECT last_position FROM consumer_checkpoints WHERE consumer_name = 'd'`); n != 2 {
		t.Errorf("begins after %d", n)
	}
	s.do(t, http.MethodPost, "change", with(form, "name", "c")).expect(t, http.StatusConflict)
}

// The comparisons of Options are those that are made, for senders who may see payloads.
func TestCompareRows(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{
		Access: func(r *http.Request) console.Grant {
			if r.Header.Get("Operator") == "bob" {
				return console.Grant{Level: console.Read}
			}
			return console.Grant{Level: console.Payloads}
		},
		Comparisons: []ops.Comparison{{Old: "c", New: "d", OldRows: `SELECT 1 AS n UNION ALL SELECT n FROM more`, NewRows: `SELECT 1 AS n UNION ALL SELECT 7`}},
	})
	s.Exec(t, `CREATE TABLE more (n INT)`)
	s.append(t, happened(3)...)
	s.place(t, "c", 3)
	s.place(t, "d", 3)
	const page = "compare?old=c&new=d"
	for _, name := range []string{"c", "d"} {
		if got := s.get(t, "consumer?name="+name); !strings.Contains(got.body, `href="compare?old=c&amp;new=d"`) {
			t.Errorf("the page of %s has no link: %s", name, got.body)
		}
	}
	if got := s.get(t, "consumer?name=c", "Operator", "bob"); strings.Contains(got.body, "compare?") {
		t.Error("who may not see rows has the link")
	}
	s.get(t, page, "Operator", "bob").expect(t, http.StatusForbidden)
	s.get(t, "compare?old=d&new=c").expect(t, http.StatusNotFound)
	form := s.get(t, page).expect(t, http.StatusOK).hidden(t, `action="compare"`)
	compare := func() answer {
		t.Helper()
		return s.do(t, http.MethodPost, "compare", form)
	}
	got := compare().expect(t, http.StatusOK)
	if !strings.Contains(got.body, "Their rows differ") || !strings.Contains(got.body, "Rows of d alone") || strings.Contains(got.body, "Rows of c alone") || !strings.Contains(got.body, "7}") {
		t.Errorf("the page: %s", got.body)
	}
	s.Exec(t, `INSERT INTO more VALUES (7)`)
	if got := compare().expect(t, http.StatusOK); !strings.Contains(got.body, "Their rows are the same") {
		t.Errorf("the same rows: %s", got.body)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 2 WHERE consumer_name = 'd'`)
	if got := compare().expect(t, http.StatusConflict); !strings.Contains(got.body, "have not both handled the event at position 3") {
		t.Errorf("one is ahead: %s", got.body)
	}
	s.do(t, http.MethodPut, "compare", nil).expect(t, http.StatusMethodNotAllowed)
}

// Two comparisons of the same consumers are an error on each page, as other wrong options are.
func TestComparedTwice(t *testing.T) {
	t.Parallel()
	one := ops.Comparison{Old: "c", New: "d", OldRows: `SELECT 1`, NewRows: `SELECT 1`}
	s := newSite(t, console.Options{Comparisons: []ops.Comparison{one, one}})
	if got := s.get(t, "").expect(t, http.StatusInternalServerError); !strings.Contains(got.body, "UNION ALL") {
		t.Errorf("the page says %s", got.body)
	}
}
