package migrations_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/migrations"
)

func TestGenerate(t *testing.T) {
	t.Parallel()
	c := migrations.DefaultConfig()
	c.OutputFolder = filepath.Join(t.TempDir(), "db", "migrations")
	c.WorkerNodesTable, c.EventsTable, c.Names.Jobs = "infra.nodes", "log.events", "infra.work"
	for _, g := range []struct {
		file     string
		generate func(*migrations.Config) error
		text     func(*migrations.Config) (string, error)
		says     []string
	}{
		{"002_worker.sql", migrations.GeneratePostgres, migrations.SQL, []string{`CREATE SCHEMA IF NOT EXISTS "infra";`, `"infra"."nodes"`}},
		{"001_store.sql", migrations.GenerateStore, migrations.StoreSQL, []string{`CREATE SCHEMA IF NOT EXISTS "log";`, `"log"."events"`}},
		{"003_jobs.sql", migrations.GenerateJobs, migrations.JobsSQL, []string{`CREATE SCHEMA IF NOT EXISTS "infra";`, `"infra"."work_history"`}},
	} {
		c.OutputFilename = g.file
		for range 2 { // again, over its own file
			if err := g.generate(&c); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(filepath.Join(c.OutputFolder, g.file))
		if err != nil {
			t.Fatal(err)
		}
		want, err := g.text(&c)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s differs from the text:\n%s", g.file, got)
		}
		for _, s := range append(g.says, "migrate-gen", "run again") {
			if !strings.Contains(want, s) {
				t.Errorf("%s does not say %s:\n%s", g.file, s, want)
			}
		}
		if !strings.HasPrefix(want, "-- ") {
			t.Errorf("%s does not begin with a comment:\n%s", g.file, want)
		}
	}
}

// GeneratePostgres refuses a Config that was written for another library's generator.
func TestGeneratePostgresRefusesTheStoresTables(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	changed := func(change func(*migrations.Config)) migrations.Config {
		c := migrations.DefaultConfig()
		change(&c)
		return c
	}
	for _, ask := range []struct {
		config  migrations.Config
		refused string
	}{
		{changed(func(c *migrations.Config) { c.EventsTable = "my_events" }), "my_events"},
		{changed(func(c *migrations.Config) { c.AggregateHeadsTable = "my_heads" }), "my_heads"},
		{migrations.Config{EventsTable: "events"}, "events"},
		{migrations.Config{AggregateHeadsTable: "my_heads"}, "my_heads"},
		{changed(func(c *migrations.Config) { c.EventsTable, c.WorkerNodesTable = "my_events", "nodes" }), ""},
		{migrations.Config{EventsTable: "events", LeaderElectionTable: "worker_leader_election"}, ""},
		{migrations.DefaultConfig(), ""},
		{migrations.Config{}, ""},
	} {
		ask.config.OutputFolder, ask.config.OutputFilename = folder, "1.sql"
		err := migrations.GeneratePostgres(&ask.config)
		if (err != nil) != (ask.refused != "") || err != nil && (!strings.Contains(err.Error(), `"`+ask.refused+`"`) || !strings.Contains(err.Error(), "GenerateStore")) {
			t.Errorf("%+v: %v", ask.config, err)
		}
		ask.config.OutputFilename = "2.sql"
		if err := migrations.GenerateStore(&ask.config); err != nil {
			t.Error(err)
		}
	}
}

func TestGenerateReplacesOnlyItsFile(t *testing.T) {
	t.Parallel()
	c := migrations.DefaultConfig()
	c.OutputFolder = t.TempDir()
	if err := migrations.GeneratePostgres(&c); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.OutputFolder, c.OutputFilename)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.GenerateStore(&c); err == nil || !strings.Contains(err.Error(), c.OutputFilename) {
		t.Errorf("the store's tables over the worker's: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the file has changed, or %v", err)
	}
}

func TestGenerateStaysInItsFolder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside.sql")
	if err := os.Symlink(outside, filepath.Join(folder, "link.sql")); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{
		"":                         "OutputFilename is empty",
		".":                        "no plain file name",
		"..":                       "no plain file name",
		"../x.sql":                 "no plain file name",
		"a/b.sql":                  "no plain file name",
		outside:                    "no plain file name",
		"link.sql":                 "link.sql",
		"zero\x00.sql":             "zero",
		"a\nb.sql":                 `"a\nb.sql" has`,
		"a\x1b.sql":                "control characters",
		"a\xff.sql":                "invalid UTF-8",
		strings.Repeat("n", 1<<20): "file name too long",
	} {
		for what, generate := range map[string]func(*migrations.Config) error{"GeneratePostgres": migrations.GeneratePostgres, "GenerateStore": migrations.GenerateStore} {
			err := generate(&migrations.Config{OutputFolder: folder, OutputFilename: name})
			if err == nil || !strings.Contains(err.Error(), says) || len(err.Error()) > 1_000 {
				t.Errorf("%s to %.60q: %.1000v, want %q", what, name, err, says)
			}
		}
	}
	if _, err := os.Lstat(outside); err == nil {
		t.Error("a link was followed out of the folder")
	}
	if err := migrations.GeneratePostgres(nil); err == nil || !strings.Contains(err.Error(), "OutputFilename") {
		t.Errorf("without a configuration: %v", err)
	}
}
