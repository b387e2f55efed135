package console_test

import (
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops/console"
)

func (s *site) csv(t testing.TB, path string) [][]string {
	t.Helper()
	got := s.get(t, path).expect(t, http.StatusOK)
	if kind := got.header.Get("Content-Type"); kind != "text/csv; charset=utf-8" || !strings.HasPrefix(got.header.Get("Content-Disposition"), "attachment; ") {
		t.Errorf("%s: headers %v", path, got.header)
	}
	all, err := csv.NewReader(strings.NewReader(got.body)).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return all
}

// All operations are in the file, however many, each once, the newest first.
func TestCSV(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
		SELECT CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd#000-7ff' END, 'pause', '{"position": 7}', 'ann', 'order ' || i FROM generate_series(1, 2500) AS i`)
	s.Exec(t, `INSERT INTO jobs_operations (job_id, queue, operation, detail, operator, reason) SELECT i, 'slow', 'cancel', '{}', 'ann', 'r' FROM generate_series(1, 1000) AS i`)
	for path, want := range map[string]struct {
		rows, step int
		first      string
	}{
		"operations.csv":                 {2_500, 1, "2500"},
		"operations.csv?consumer=odd":    {1_250, 2, "2499"},
		"operations.csv?consumer=nobody": {0, 1, ""},
		"jobsoperations.csv":             {1_000, 1, "1000"},
	} {
		all := s.csv(t, path)
		if len(all) != want.rows+1 || all[0][0] != "number" {
			t.Fatalf("%s: %d lines, the first %v", path, len(all), all[0])
		}
		for i, line := range all[1:] {
			if n := 0; i == 0 && line[0] != want.first || i > 0 && line[0] != fmt.Sprint(number(t, all[i][0], &n)-want.step) {
				t.Fatalf("%s: line %d is %v, after %v", path, i, line, all[i])
			}
		}
	}
	if line := s.csv(t, "operations.csv?consumer=even")[1]; fmt.Sprint(line[2:]) != `[even pause ann order 2500 {"position": 7}]` {
		t.Errorf("%q", line)
	}
	if line := s.csv(t, "jobsoperations.csv")[1]; fmt.Sprint(line[2:]) != "[1000 slow cancel ann r {}]" {
		t.Errorf("%q", line)
	}
	s.get(t, "operations.csv?consumer=%00").expect(t, http.StatusBadRequest)
}

func number(t testing.TB, text string, n *int) int {
	t.Helper()
	if _, err := fmt.Sscan(text, n); err != nil {
		t.Fatal(err)
	}
	return *n
}

// No text becomes a formula of a spreadsheet.
func TestCSVFormulas(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	for _, text := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", "x;=1+1", "x; @SUM(A1)", "x\n-1", "x\t+1", "plain, \"quoted\"\nline"} {
		s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ($1, 'pause', '{}', $1, $1)`, text)
	}
	for _, line := range s.csv(t, "operations.csv")[1:] {
		for _, cell := range line {
			for _, part := range strings.FieldsFunc(cell, func(r rune) bool { return strings.ContainsRune(";\t\r\n", r) }) {
				if strings.HasPrefix(strings.TrimSpace(part), "＝") || strings.ContainsAny(strings.TrimSpace(part)[:1], "=+-@") {
					t.Errorf("%q may be a formula", cell)
				}
			}
			if strings.ContainsAny(cell[:1], "\t\r") {
				t.Errorf("%q may be a formula", cell)
			}
		}
	}
	if line := s.csv(t, "operations.csv")[1]; line[5] != "plain, \"quoted\"\nline" {
		t.Errorf("%q is no formula, and was altered", line[5])
	}
}

// A download that breaks off cannot be taken for a whole one.
func TestCSVBreaksOff(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
		SELECT 'c', 'pause', jsonb_build_object('text', repeat('x', 20000)), 'ann', 'r' FROM generate_series(1, 2000) AS i`)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"operations.csv", nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := http.DefaultClient.Do(r) // the first rows are read, more than the connection holds
	if err != nil || got.StatusCode != http.StatusOK {
		t.Fatal(got, err)
	}
	defer got.Body.Close()
	s.Exec(t, `ALTER TABLE consumer_operations RENAME TO gone`)
	if n, err := io.Copy(io.Discard, got.Body); err == nil {
		t.Errorf("%d bytes end as if they were all", n)
	}
	s.get(t, "operations.csv").expect(t, http.StatusNotFound)
}
