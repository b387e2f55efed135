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

// page returns docs/jobs.md up to the section about this package, and that section.
func page(t *testing.T) (before, ours string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/jobs.md")
	if err != nil {
		t.Fatal(err)
	}
	before, ours, found := strings.Cut(string(text), "\n## Your own table\n")
	if !found {
		t.Fatal(`docs/jobs.md has no section "Your own table"`)
	}
	return before, ours
}

// blocks are the code blocks of a language.
func blocks(markdown, language string) (all []string) {
	for i, part := range strings.Split(markdown, "```"+language+"\n") {
		if block, _, _ := strings.Cut(part, "```"); i > 0 {
			all = append(all, block)
		}
	}
	return all
}

// The SQL of docs/jobs.md about a table of the user runs, and its table fits.
func TestDocumentedSQL(t *testing.T) {
	t.Parallel()
	_, ours := page(t)
	all := blocks(ours, "sql")
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

// The table of the manual is the documented table.
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

// The Go of docs/jobs.md, about schedules and flows, compiles.
func TestDocumentedGo(t *testing.T) {
	t.Parallel()
	before, _ := page(t)
	rest := blocks(before, "go")
	if len(rest) < 3 {
		t.Fatalf("%d blocks were found", len(rest))
	}
	dir := t.TempDir()
	place, err := filepath.Abs("testdata/documented") // exists in the overlay only
	if err != nil {
		t.Fatal(err)
	}
	written := filepath.Join(dir, "rest.go")
	if err := os.WriteFile(written, []byte(documentedRest+strings.Join(rest, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{filepath.Join(place, "rest.go"): written}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", file, place).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// documentedRest is what a reader has beside the blocks about schedules and flows.
const documentedRest = `package documented

import (
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/jobs/schedule"
)

type Work struct{}

func (Work) Kind() string { return "work" }

type (
	List struct {
		Work
		Album string
	}
	Resize struct{ Work }
	Zip struct {
		Work
		Album string
	}
)

func newWork(time.Time) jobs.Args { return Work{} }

func newStep(string) Work { return Work{} }

var (
	berlin                           = time.UTC
	newDigest, newSync, newInvoice   = newWork, newWork, newWork
	newPost, newDone                 = newStep, newStep
	album, order                     = flow.New[string]("album"), flow.New[string]("order")
	courier                          = flow.Add[flow.None](order, "courier", newStep)
)

`
