package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/command"
)

// Whether an entry is too old depends on the day, so only tools/lint checks that: a
// checkout of a release stays green.
func TestRepository(t *testing.T) {
	tests, err := parseTests("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{".", "internal/lab/tierlint", "observe/otel"} { // the last is another module
		if len(tests.tests[dir]) == 0 {
			t.Errorf("no test was found in directory %s", dir)
		}
	}
	_, problems, err := readQuarantine("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(tests.lintLong(), problems...) {
		t.Error(p)
	}
}

// write writes files below a directory of the test.
func write(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLongMustNameAQuickTest(t *testing.T) {
	const head = "package a\n\nimport \"github.com/pgfrontier/worker/internal/lab/tier\"\n\n"
	for _, c := range []struct{ body, want string }{
		{`func TestLong(t *testing.T) { tier.Long(t, "TestQuick does two") }`, ""},
		{"func TestLong(t *testing.T) { tier.Long(t, `TestQuick does two`) }", ""},
		{`func TestLong(t *testing.T) { t.Run("", func(t *testing.T) { tier.Long(t, "TestLong has others") }) }`, ""},
		{`func TestLong(t *testing.T) { tier.Long(t, "BenchmarkQuick does two") }`, ""},
		{`func TestLong(t *testing.T) { other.Long(t, "") }`, ""},
		{`func TestLong(t *testing.T) { tier.Long(t, text) }`, "a/a_test.go:5: tier.Long has no string literal for its second argument: write"},
		{`func TestLong(t *testing.T) { tier.Long(t, "TestQuick" + " does two") }`, "has no string literal"},
		{`func TestLong(t *testing.T) { tier.Long(t) }`, "has no string literal"},
		{`func TestLong(t *testing.T) { tier.Long(t, "") }`, `says "": begin with the name of a test`},
		{`func TestLong(t *testing.T) { tier.Long(t, "two of them") }`, `says "two of them": begin with the name`},
		{`func TestLong(t *testing.T) { tier.Long(t, "TestElsewhere does two") }`, "names TestElsewhere, which is not in directory a: name a test there"},
		{`func TestLong(t *testing.T) { tier.Long(t, "TestMethod does two") }`, "names TestMethod, which is not in directory a"},
		{`func TestLong(t *testing.T) { tier.Long(t, "TestLong does two") }`, "names TestLong, which calls tier.Long itself"},
		{`func TestLong(t *testing.T) { tier.Long(t, "TestQuick") }`, "names TestQuick and says no more: add"},
		{`func helper(t *testing.T) { tier.Long(t, "nothing") }`, `says "nothing"`},
	} {
		root := write(t, map[string]string{
			"a/a_test.go":            head + c.body,
			"a/other_test.go":        "package a_test\n\nfunc TestQuick(t *testing.T) {}\nfunc BenchmarkQuick(b *testing.B) {}\nfunc (x) TestMethod(t *testing.T) {}\n",
			"b/b_test.go":            "package b\n\nfunc TestElsewhere(t *testing.T) {}\n",
			"a/testdata/not_test.go": "no Go",
			".cache/not_test.go":     "no Go",
		})
		tests, err := parseTests(root)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(tests.lintLong(), "\n")
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s\nis told %q, want %q", c.body, got, c.want)
		}
	}
}

func TestQuarantine(t *testing.T) {
	now := time.Date(2026, 11, 26, 23, 59, 0, 0, time.FixedZone("", 14*3600))
	for _, c := range []struct{ line, want string }{
		{"2026-11-26 a TestA ann: it timed out: 5s", ""},
		{"2026-11-12 . TestTop ann b: it timed out", ""},
		{"2026-11-11 a TestA ann: it timed out", "internal/lab/tier/quarantine.txt:3: TestA has been in quarantine for 15 days, allowed are 14: mend the test or the product"},
		{"2026-11-27 a TestA ann: it timed out", "2026-11-27 is in the future"},
		{"2026-02-30 a TestA ann: it timed out", "2026-02-30 is no date"},
		{"2026-11-26 a TestA: it timed out", "is no entry: write 2026-11-26 package/path"},
		{"2026-11-26 a TestA ann:", "is no entry"},
		{"2026-11-26 a TestA/sub ann: it timed out", "is no entry"},
		{"26.11.2026 a TestA ann: it timed out", "is no entry"},
		{"2026-11-26 b TestA ann: it timed out", "there is no test TestA in directory b"},
		{"2026-11-26 a TestTwice ann: it timed out", "TestTwice is also in directory b, and the gate would skip it there"},
	} {
		root := write(t, map[string]string{
			quarantineFile: "# a head\n\n" + c.line + "\n",
			"top_test.go":  "package top\n\nfunc TestTop(t *testing.T) {}\n",
			"a/a_test.go":  "package a\n\nfunc TestA(t *testing.T) {}\nfunc TestTwice(t *testing.T) {}\n",
			"b/b_test.go":  "package b\n\nfunc TestTwice(t *testing.T) {}\n",
		})
		tests, err := parseTests(root)
		if err != nil {
			t.Fatal(err)
		}
		entries, problems, err := readQuarantine(root)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(append(problems, tests.lintQuarantine(entries, now)...), "\n")
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s\nis told %q, want %q", c.line, got, c.want)
		}
	}
}

func TestCommandPrintsTheQuarantine(t *testing.T) {
	line := time.Now().Format(time.DateOnly) + " "
	t.Chdir(write(t, map[string]string{
		quarantineFile: line + "a TestA ann: it timed out\n" + line + "a TestB ann: it timed out\n",
		"a/a_test.go":  "package a\n\nfunc TestA(t *testing.T) {}\n",
	}))
	for _, c := range []struct {
		args           string
		status         int
		stdout, stderr string
	}{
		{"-skip", command.OK, "^(TestA|TestB)$", ""},
		{"-list", command.OK, "a TestA\na TestB\n", ""},
		{"", command.Failed, "", quarantineFile + ":2: there is no test TestB in directory a: remove the entry\n"},
		{"-skip -list", command.Error, "", "tierlint: -skip and -list exclude each other (see -h)\n"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(t.Context(), strings.Fields(c.args), &stdout, &stderr)
		if status != c.status || stdout.String() != c.stdout || stderr.String() != c.stderr {
			t.Errorf("%q: status %d, %q, %q; want %d, %q, %q", c.args, status, stdout.String(), stderr.String(), c.status, c.stdout, c.stderr)
		}
	}
	t.Chdir(t.TempDir())
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), nil, &stdout, &stderr); status != command.Error || !strings.Contains(stderr.String(), "quarantine.txt") {
		t.Errorf("without the file: status %d, %q", status, stderr.String())
	}
}
