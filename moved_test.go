package worker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

// The program in testdata/moved uses what workers of this family have in common,
// in each way that programs for them do. With other import paths it runs here.
func TestProgramsForOtherWorkersRun(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	program := filepath.Join(folder, "moved")
	if out, err := exec.Command("go", "build", "-o", program, "./testdata/moved").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	schema := migrated(t, program, folder)

	overview := []string{"overview: Order o-1 1", "overview: Order o-1 2"}
	audit := []string{"audit: Order o-1 1", "audit: Order o-1 2", "audit: User u-1 1"}
	all := slices.Concat(overview, audit)
	for setup, want := range map[string][]string{
		"defaults":   all,
		"some":       append(audit, "stopped"), // by itself
		"poll":       all,
		"notify":     all,
		"everything": all,
	} {
		t.Run(setup, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t)
			d.Exec(t, schema)
			run(t, program, []string{"SETUP=" + setup, "DATABASE_URL=" + d.URL}, want...)
		})
	}
}

// migrated returns the SQL files that the program writes, and the store's.
func migrated(t *testing.T, program, folder string) (schema string) {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), "SETUP=migrate")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	schema, err := migrations.StoreSQL(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1_usual.sql", "2_infra.sql"} {
		text, err := os.ReadFile(filepath.Join(folder, "sql", name))
		if err != nil {
			t.Fatal(err)
		}
		schema += string(text)
	}
	return schema
}
