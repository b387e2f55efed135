package repository_test

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pgfrontier/worker"

// notLibrary is what only tests and commands use.
var notLibrary = []string{"internal/e2e", "internal/lab", "internal/progress/progresstest", "sim", "cmd", "chaos"}

// Users of the library inherit the standard library, google/uuid, and pgx with
// what it needs itself; nothing that only our tests and commands need.
func TestLibraryDependencies(t *testing.T) {
	deps := goDeps(t, "./...", "github.com/jackc/pgx/v5/stdlib")
	allowed := append(deps["github.com/jackc/pgx/v5/stdlib"], "github.com/jackc/pgx/v5/stdlib", "github.com/google/uuid")
	for p, imports := range deps {
		if !ofLibrary(p) {
			continue
		}
		for _, dep := range imports {
			if !ofLibrary(dep) && !standard(dep) && !slices.Contains(allowed, dep) {
				t.Errorf("%s needs %s, but the library needs the standard library, google/uuid and pgx only", p, dep)
			}
		}
	}
	for _, p := range []string{"", "/store", "/store/consumer", "/store/postgres", "/store/pgxtx", "/frontier", "/coord", "/ops/console", "/observe/health", "/observe/metrics", "/migrations", "/ops", "/jobs", "/jobs/schedule", "/jobs/table", "/jobs/flow", "/workertest"} {
		if _, ok := deps[module+p]; !ok || !ofLibrary(module+p) {
			t.Errorf("%s%s was not looked at", module, p)
		}
	}
}

// What judges the workers needs none of them, and no database: it runs again
// over what was saved.
func TestOracleStandsAlone(t *testing.T) {
	for p, imports := range goDeps(t, "./sim/history", "./sim/oracle") {
		for _, dep := range imports {
			if strings.HasPrefix(dep, "github.com/jackc/") || dep == "database/sql" ||
				dep == module || strings.HasPrefix(dep, module+"/") && !strings.HasPrefix(dep, module+"/sim/") {
				t.Errorf("%s needs %s", p, dep)
			}
		}
	}
}

// shared are the parts that do not know what workers do.
var shared = []string{"backoff", "changes", "ident", "incarnation", "listen", "liveness", "pgdriver", "refusal", "runtime", "wakeup", "watchdog"}

// Another system than consumers can be built of the shared parts: they need only
// each other, the interfaces of the log, and texts of errors.
func TestSharedPartsKnowNoConsumers(t *testing.T) {
	allowed := []string{module + "/store", module + "/observe", module + "/internal/errtext"}
	var packages []string
	for _, name := range shared {
		packages = append(packages, "./internal/"+name)
		allowed = append(allowed, module+"/internal/"+name)
	}
	for p, imports := range goDeps(t, packages...) {
		for _, dep := range imports {
			if strings.HasPrefix(dep+"/", module+"/") && !slices.Contains(allowed, dep) {
				t.Errorf("%s needs %s", p, dep)
			}
		}
	}
}

func ofLibrary(path string) bool {
	own, ok := strings.CutPrefix(path+"/", module+"/")
	return ok && !slices.ContainsFunc(notLibrary, func(n string) bool { return strings.HasPrefix(own, n+"/") })
}

// standard packages are those whose path begins without a domain.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// goDeps returns for each package all that it needs, directly or not; tests
// do not count.
func goDeps(t *testing.T, packages ...string) map[string][]string {
	t.Helper()
	lookAtFolders(t)
	args := append([]string{"list", "-f", `{{.ImportPath}} {{join .Deps " "}}`}, packages...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &complaint)
	}
	deps := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		deps[fields[0]] = fields[1:]
	}
	return deps
}

// lookAtFolders opens every folder, so that a change in any of them makes go
// test run this test again: it does not know what another process has read.
func lookAtFolders(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
