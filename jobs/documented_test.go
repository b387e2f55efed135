package jobs_test

import (
	"os"
	"strings"
	"testing"
)

// The SQL of docs/jobs.md runs.
func TestDocumentedSQL(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.add(task{1})
	text, err := os.ReadFile("../docs/jobs.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i, part := range strings.Split(string(text), "```sql\n") {
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
	if n < 5 {
		t.Errorf("only %d statements were found", n)
	}
}
