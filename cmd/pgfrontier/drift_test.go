package main

import (
	"strings"
	"testing"

	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

// What doctor expects is all that the texts of the migrations create.
func TestExpectedParts(t *testing.T) {
	for _, names := range []store.Names{{}, {Schema: "infra", Prefix: "x_"}} {
		for _, text := range []func(*migrations.Config) (string, error){migrations.StoreSQL, migrations.SQL, migrations.JobsSQL} {
			content, err := text(&migrations.Config{Names: names})
			if err != nil {
				t.Fatal(err)
			}
			counts := map[string]int{}
			for _, e := range expectedOf(content, true) {
				switch {
				case e.Column != "":
					counts["column"]++
				case e.Index == "":
					counts["table"]++
				case e.Unique:
					counts["constraint"]++
				default:
					counts["index"]++
				}
				if e.Table == "" || names.Schema != "" && !strings.HasPrefix(e.Table, `"infra"."x_`) {
					t.Errorf("the table of %+v", e)
				}
			}
			columns := 0
			for line := range strings.Lines(content) {
				if strings.HasPrefix(line, "    ADD COLUMN") || strings.HasPrefix(line, "    ") && !strings.HasPrefix(line, "     ") && strings.ContainsAny(line[4:5], `abcdefghijklmnopqrstuvwxyz"`) {
					columns++
				}
			}
			for what, want := range map[string]int{
				"table": strings.Count(content, "TABLE IF NOT EXISTS"), "column": columns,
				"constraint": strings.Count(content, "    CONSTRAINT "), "index": strings.Count(content, "('CREATE INDEX IF NOT EXISTS"),
			} {
				if counts[what] != want {
					t.Errorf("%d of each %s, and the text has %d", counts[what], what, want)
				}
			}
		}
	}
}
