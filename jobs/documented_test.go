package jobs_test

import (
	"os"
	"strings"
	"testing"
)

// The SQL of docs/jobs.md about the tables of package jobs runs.
func TestDocumentedSQL(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.add(task{1})
	text, err := os.ReadFile("../docs/jobs.md")
	if err != nil {
		t.Fatal(err)
	}
	page, _, found := strings.Cut(string(text), "\n## Your own table\n") // of package table: its test runs that
	if !found {
		t.Fatal(`docs/jobs.md has no section "Your own table"`)
	}
	n := 0
	for i, part := range strings.Split(page, "```sql\n") {
		block, _, _ := strings.Cut(part, "```")
		if i == 0 {
			continue
		}
		for statement := range strings.SplitSeq(block, ";\n") {
			if statement = strings.TrimSpace(statement); statement != "" {
				s.d.Exec(t, statement)
				n++
			}
		}
	}
	if n < 9 {
		t.Errorf("only %d statements were found", n)
	}
}
