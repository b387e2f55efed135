package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/console"
	"github.com/pgfrontier/worker/ops"
)

// Of 10,000 dead letters, those that match are retried or discarded in one transaction, as
// the preview has counted them.
func TestManyLetters(t *testing.T) {
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

// Without a consumer, the page has those that have letters, and a name that is none is said
// to be none.
func TestWhoHasLetters(t *testing.T) {
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
