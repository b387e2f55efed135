package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 7)
	file := filepath.Join(t.TempDir(), "build.json")
	write := func(names ...string) {
		t.Helper()
		var all []string
		for _, name := range names {
			all = append(all, `{"name": "`+name+`", "count": 1}`)
		}
		if err := os.WriteFile(file, []byte(`{"format": 1, "consumers": [`+strings.Join(all, ",")+`]}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("c")
	s.expect(t, exitDone, []string{"plan", file}, "the database does not know")
	write("c", "d")
	s.expect(t, exitRefused, []string{"plan", file}, "new: begins at the first event, and selects all types")
	data := s.expect(t, exitRefused, []string{"plan", file, "-o", "json"}).data(t)
	if d := data["consumers"].([]any)[1].(map[string]any); data["changes"] != true || d["name"] != "d" || d["changes"] != true || len(d["says"].([]any)) != 1 {
		t.Errorf("printed %v", data)
	}
	s.in(t, place{in: strings.NewReader(`{"format": 1, "consumers": [{"name": "e", "count": 1}]}`)}, "plan", "-").is(t, exitRefused, "e ", "c ", "no worker has code for it now")
	s.in(t, place{in: strings.NewReader("{}")}, "plan", "-").is(t, exitUnable, "format is 0")
	s.expect(t, exitUnable, []string{"plan", file + ".none"}, "no such file")
}
