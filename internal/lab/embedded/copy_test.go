package embedded

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// What was written after the copy is gone when it is put back, also from tables
// that a crash would empty.
func TestPutBackTakesBackWhatCameAfterTheCopy(t *testing.T) {
	s := own(t, nil)
	if err := s.PutBack(t.Context()); err == nil || !strings.Contains(err.Error(), "there is no copy") {
		t.Errorf("without a copy: %v", err)
	}
	execute(t, s, `CREATE UNLOGGED TABLE marks AS SELECT 'kept' AS mark`)
	for _, later := range []string{"first", "second"} { // more than once
		if err := s.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		execute(t, s, `INSERT INTO marks VALUES ('`+later+`')`)
		if got := query(t, s.URL(""), `SELECT string_agg(mark, ' ') FROM marks`); got != "kept "+later {
			t.Errorf("after the copy the marks are %q", got)
		}
		if err := s.PutBack(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := query(t, s.URL(""), `SELECT string_agg(mark, ' ') FROM marks`); got != "kept" {
			t.Errorf("with the copy in place the marks are %q", got)
		}
	}
}

func execute(t *testing.T, s *Server, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
