package table_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs/table"
)

// blocks are the code blocks of a language in docs/jobs-table.md.
func blocks(t *testing.T, language string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/jobs-table.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(text), "```"+language+"\n") {
		if block, _, _ := strings.Cut(part, "```"); i > 0 {
			all = append(all, block)
		}
	}
	return all
}

// The SQL of docs/jobs-table.md runs, and its table fits.
func TestDocumentedSQL(t *testing.T) {
	t.Parallel()
	all := blocks(t, "sql")
	if len(all) != 3 {
		t.Fatalf("%d blocks were found", len(all))
	}
	d := pgtest.Empty(t)
	db := d.OpenPQ(t)
	for _, block := range all {
		if _, err := db.ExecContext(t.Context(), block); err != nil {
			t.Errorf("%v, in\n%s", err, block)
		}
	}
	if err := table.NewStore(d.DB, options()).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// The table of the manual is the one that is documented.
func TestManual(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.ReplaceAll(strings.ReplaceAll(string(text), "\n//\t", "\n"), "\n//", "\n")
	_, rest, _ := strings.Cut(plain, "CREATE TABLE example_jobs (")
	ddl, rest, _ := strings.Cut(rest, ");")
	_, indexes, _ := strings.Cut(rest, "CREATE INDEX")
	indexes, _, _ = strings.Cut(indexes, "\n\n")
	d := pgtest.Empty(t)
	if _, err := d.OpenPQ(t).ExecContext(t.Context(), "CREATE TABLE example_jobs ("+ddl+"); CREATE INDEX"+indexes); err != nil {
		t.Fatal(err)
	}
	o := options()
	o.ViewName, o.ColumnExpressions = "", []string{"j.id"}
	if err := table.NewStore(d.DB, o).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// The Go of docs/jobs-table.md compiles.
func TestDocumentedGo(t *testing.T) {
	t.Parallel()
	program := `package main

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/pgfrontier/worker/jobs/table"
)

func process(context.Context, *sql.Tx, ExampleJob) error { return nil }

func main() {
	var db *sql.DB
	_ = makeWorker(makeStore(db), &handler{db}).Start(context.Background())
}

` + strings.Join(blocks(t, "go"), "\n")
	dir := t.TempDir()
	written := filepath.Join(dir, "main.go")
	if err := os.WriteFile(written, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	place, err := filepath.Abs("testdata/documented") // exists in the overlay only
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(place, "main.go"): written}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", file, "-o", filepath.Join(dir, "program"), place).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
