package sqltext

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

func texts(files map[string]string) Texts {
	all := fstest.MapFS{}
	for name, text := range files {
		all["sql/"+name+".sql"] = &fstest.MapFile{Data: []byte(text)}
	}
	return Parse(all)
}

func TestStatement(t *testing.T) {
	all := texts(map[string]string{
		"read":  "-- Reads one row.\nSELECT '{}', {columns}, {time a.{at}}\n\t-- as in\nFROM {dead_letters} {of x.y}{limit}\n",
		"of":    "AS {argument} JOIN {other}",
		"other": "{events}",
	})
	tables := struct {
		Events, DeadLetters ident.Table
		Other               int
	}{ident.Table{Name: "e"}, ident.Table{Schema: "s", Name: "d"}, 1}
	got := all.Statement("read", Names(tables, Values{"columns": "'{read}'", "limit": "{limit}", "at": `"At"`}))
	want := `SELECT '{}', '{read}', ` + pgdriver.Time(`a."At"`) + "\nFROM \"s\".\"d\" AS x.y JOIN \"e\"{limit}"
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// A statement with a placeholder that has no value is never built.
func TestStatementRefusesMistakes(t *testing.T) {
	all := texts(map[string]string{"unknown": "SELECT {nothing}", "inner": "{of x}", "of": "{argument} {nothing}", "plain": "SELECT 1", "argument": "SELECT {plain x}", "without": "{of}",
		"digit": "{limit_5}", "capital": "{Limit}", "spaced": "{flow steps}"})
	for name, says := range map[string]string{
		"unknown":  "no value for {nothing} in: SELECT {nothing}",
		"inner":    "no value for {nothing} in: {argument} {nothing}",
		"argument": "no value for {plain x}",
		"without":  "no value for {of}",
		"digit":    "no value for {limit_5}",
		"capital":  "no value for {Limit}",
		"spaced":   "no value for {flow steps}",
		"missing":  "there is no file sql/missing.sql",
	} {
		if got := panics(func() { all.Statement(name, Values{}) }); !strings.Contains(got, says) {
			t.Errorf("%s: %q, want %q", name, got, says)
		}
	}
	if got := panics(func() { Parse(fstest.MapFS{}) }); !strings.Contains(got, "no file sql/*.sql") {
		t.Errorf("no files: %q", got)
	}
}

func panics(f func()) (with string) {
	defer func() { with = fmt.Sprint(recover()) }()
	f()
	return ""
}
