package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldest is the first major version this library works with.
const oldest = 13

// binaries is a directory with a server's programs.
type binaries struct {
	dir     string
	version string // "15.18"
	source  string
}

func (b binaries) program(name string) string { return filepath.Join(b.dir, name) }

// find returns the binaries to use. It fails with everything that was tried.
func find(ctx context.Context, who *account) (binaries, error) {
	packaged, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	var tried []error
	for _, dir := range candidates(os.Getenv("PATH"), packaged, hasServer) {
		bin, err := inspect(ctx, dir, who)
		if err == nil {
			return bin, nil
		}
		if ctx.Err() != nil {
			return binaries{}, fmt.Errorf("embedded: %w", ctx.Err())
		}
		tried = append(tried, err)
	}
	return binaries{}, errors.Join(tried...)
}

// candidates orders the directories that hold a server: those of PATH, then
// the packaged ones (.../15/bin), newest major version first.
func candidates(path string, packaged []string, holds func(dir string) bool) []string {
	major := func(dir string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		return n
	}
	packaged = slices.Clone(packaged)
	slices.SortStableFunc(packaged, func(a, b string) int { return major(b) - major(a) })
	var found []string
	for _, dir := range append(filepath.SplitList(path), packaged...) {
		if filepath.IsAbs(dir) && !slices.Contains(found, dir) && holds(dir) {
			found = append(found, dir)
		}
	}
	return found
}

// hasServer asks for both: client packages have neither, and some layouts put
// only one of them on the PATH.
func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`)

// inspect runs the server's program as the user that it will run as, who may
// not get through to it.
func inspect(ctx context.Context, dir string, who *account) (binaries, error) {
	bin := binaries{dir: dir, source: "the binaries in " + dir}
	out, err := run(ctx, who, os.TempDir(), bin.program("postgres"), "--version")
	if err != nil {
		return binaries{}, fmt.Errorf("%s: %w%s", dir, err, indent(out))
	}
	m := versionPattern.FindStringSubmatch(out)
	if m == nil {
		return binaries{}, fmt.Errorf("%s: postgres --version says %q, which names no version", dir, strings.TrimSpace(out))
	}
	if major, _ := strconv.Atoi(m[2]); major < oldest {
		return binaries{}, fmt.Errorf("%s: PostgreSQL %s is older than %d", dir, m[1], oldest)
	}
	bin.version = m[1]
	return bin, nil
}
