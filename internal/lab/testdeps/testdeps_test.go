package testdeps

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets a test run this program again, see TestSummary.
func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv(Variable) == os.Getenv("LACKING_TEST") {
		Summarize()
	}
	os.Exit(code)
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	program := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	program("hidden", "", 0o644)
	program("stub", "#!/bin/sh\necho install something else\nexit 1\n", 0o755)
	works := program("works", "#!/bin/sh\necho 1.0\n", 0o755)

	for _, names := range [][]string{{"works"}, {"no-such-program", "hidden", works}, {"stub", "works"}} {
		if path, err := Find(t.Context(), "Thing", "install it", names...); err != nil || path != works {
			t.Errorf("of %q found %q, %v", names, path, err)
		}
	}
	for name, says := range map[string]string{"hidden": "there is no Thing on this machine: install it", "stub": "exit status 1 install something else): install it"} {
		_, err := Find(t.Context(), "Thing", "install it", name)
		if lacks := (*Error)(nil); !errors.As(err, &lacks) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
}

// What was skipped is counted, at the end of a file that is there.
func TestSummary(t *testing.T) {
	if os.Getenv("LACKING_TEST") != "" {
		for range 3 {
			t.Run("", func(t *testing.T) { Skip(t, &Error{Program: "Thing", Remedy: "install it"}) })
		}
		Skip(t, io.EOF) // no reason to skip
		return
	}
	file := filepath.Join(t.TempDir(), "skipped")
	if err := os.WriteFile(file, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSummary$", "-test.v")
	again.Env = append(os.Environ(), Variable+"="+file, "LACKING_TEST="+file)
	out, err := again.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const tested = "github.com/pgfrontier/worker/internal/lab/testdeps"
	want := "3 skipped in " + tested + ": there is no Thing on this machine: install it; then: go test -count=1 " + tested + "\n"
	got, err := os.ReadFile(file)
	if err != nil || string(got) != "before\n"+want {
		t.Errorf("the file has %q, %v, want %q", got, err, want)
	}
	if !strings.Contains(string(out), want) {
		t.Errorf("the output does not have %q:\n%s", want, out)
	}
}
