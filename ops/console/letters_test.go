package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/ops/console"
)

// Of 10,000 dead letters, those that match are retried or discarded in one transaction, as
// the preview has counted them.
func TestManyDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.place(t, "c", 10_010)
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		SELECT 'c', i, 'Order', i::text, gen_random_uuid(), 'Happened', CASE WHEN i <= 10005 THEN 'boom ' ELSE 'other ' END || i, 1 FROM generate_series(1, 10010) AS i`)
	for _, change := range []struct {
		kind  string
		count int64
		left  string // SQL: what is expected
	}{
		{"retry", 10_000, `SELECT count(*) FROM consumer_dead_letters WHERE retry_at IS NOT NULL`},
		{"discard", 10_000, `SELECT 10010 - count(*) FROM consumer_dead_letters`},
		{"discard", 5, `SELECT 10 - count(*) FROM consumer_dead_letters`},
	} {
		before := s.count(t, `SELECT count(*) FROM consumer_operations`)
		form := with(s.get(t, "letters?consumer=c&error=boom").hidden(t, `value="`+change.kind+`"`), "reason", "r")
		shown := s.do(t, http.MethodPost, "change", form).expect(t, http.StatusOK)
		if want := fmt.Sprintf("<dt>letters</dt><dd>%d</dd>", change.count); !strings.Contains(shown.body, want) || len(shown.body) > 10_000 {
			t.Errorf("%d bytes, want %q:\n%s", len(shown.body), want, shown.body)
		}
		s.do(t, http.MethodPost, "change", shown.hidden(t, `name="step" value="make"`)).expect(t, http.StatusSeeOther)
		if n := s.count(t, change.left); n != change.count {
			t.Errorf("%s of %d, want %d", change.kind, n, change.count)
		}
		if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != before+1 {
			t.Errorf("%d operations, want 1", n-before)
		}
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_dead_letters WHERE error LIKE 'other%'`); n != 5 {
		t.Errorf("%d others are left, want 5", n)
	}
	// All of what was recorded is in the page's JSON, and its beginning in the page.
	var all struct{ Operations []ops.Operation }
	s.read(t, "operations", &all)
	var detail struct{ Positions []int64 }
	if err := json.Unmarshal(all.Operations[1].Detail, &detail); err != nil || len(detail.Positions) != 10_000 {
		t.Errorf("%d positions, %v", len(detail.Positions), err)
	}
	if page := s.get(t, "operations").body; !strings.Contains(page, "… (10,000 in all)") || len(page) > 20_000 {
		t.Errorf("%d bytes:\n%.20000s", len(page), page)
	}
}

// A change of all that match takes those that the page has shown, by each of its filters.
func TestFiltersOfDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.append(t, happened(5)...)
	s.place(t, "c", 5)
	s.letters(t, "c", "boom", 5)
	s.Exec(t, `UPDATE consumer_dead_letters SET event_type = 'Paid' WHERE global_position = 2`)
	s.Exec(t, `UPDATE consumer_dead_letters SET aggregate_type = 'Invoice' WHERE global_position = 3`)
	s.Exec(t, `UPDATE consumer_dead_letters SET created_at = now() - interval '2 hours' WHERE global_position = 4`)
	s.Exec(t, `UPDATE consumer_dead_letters SET error = 'crash' WHERE global_position = 5`)
	for filter, position := range map[string]int64{"type=Paid": 2, "aggregate=Invoice": 3, "older=1h": 4, "error=crash": 5} {
		address := "letters?consumer=c&" + filter
		var shown struct{ Letters []struct{ Position int64 } }
		if s.read(t, address, &shown); fmt.Sprint(shown.Letters) != fmt.Sprintf("[{%d}]", position) {
			t.Errorf("%s shows %v", filter, shown.Letters)
		}
		for _, kind := range []string{"retry", "discard"} {
			form := with(s.get(t, address).hidden(t, `value="`+kind+`"`), "reason", "r")
			var p previewed
			got := s.do(t, http.MethodPost, "change", form, "Accept", "application/json").expect(t, http.StatusOK)
			if err := json.Unmarshal([]byte(got.body), &p); err != nil || len(p.Records) != 1 || !strings.Contains(string(p.Records[0].Detail), `"letters":1`) {
				t.Errorf("%s of %s would record %s, %v", kind, filter, got.body, err)
			}
			s.do(t, http.MethodPost, "change", s.preview(t, form)).expect(t, http.StatusSeeOther)
			if n := s.count(t, `SELECT coalesce(sum(global_position), 0) FROM consumer_dead_letters WHERE retry_at IS NOT NULL`); kind == "retry" && n != position {
				t.Errorf("%s: a retry was asked for %d, want %d", filter, n, position)
			}
		}
	}
	if n := s.count(t, `SELECT sum(global_position) FROM consumer_dead_letters`); n != 1 {
		t.Errorf("the sum of the positions that are left is %d, want 1", n)
	}
}

// Without a consumer, the page has those that have dead letters, and a name that is none is said
// to be none.
func TestWhoHasDeadLetters(t *testing.T) {
	t.Parallel()
	s := stuck(t, console.Options{Access: operators})
	s.place(t, "d", 5)
	s.letters(t, "d", "boom", 5)
	s.place(t, "none", 5)
	var p struct {
		Consumers []struct {
			Consumer string
			Number   int64
		}
	}
	if s.read(t, "letters", &p); fmt.Sprint(p.Consumers) != "[{d 5} {c 2}]" {
		t.Errorf("%v", p.Consumers)
	}
	if body := s.get(t, "letters").body; !strings.Contains(body, `<a href="letters?consumer=d">`) || strings.Contains(body, ">none<") {
		t.Error(body)
	}
	s.get(t, "letters?consumer=none").expect(t, http.StatusOK)
	for _, page := range []string{"letters", "gaps"} {
		s.get(t, page+"?"+url.Values{"consumer": {"nobody"}}.Encode()).expect(t, http.StatusNotFound)
	}
}
