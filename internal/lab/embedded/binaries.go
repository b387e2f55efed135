package embedded

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldest is the first major version of PostgreSQL that the library works with.
const oldest = 13

// binaries is a directory with a server's programs.
type binaries struct {
	dir     string
	version string // "15.18"
	source  string // in words
}

func (b binaries) program(name string) string { return filepath.Join(b.dir, name) }

// sources says where binaries may come from.
type sources struct {
	path     string   // as in the environment's PATH
	packaged []string // where packages put them: .../15/bin
	archive  archive
}

func thisMachine() sources {
	packaged, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // a good pattern
	return sources{path: os.Getenv("PATH"), packaged: packaged, archive: archive{cache: cacheDir()}}
}

// find returns the first binaries that can be used, or an error with
// everything that was tried.
func find(ctx context.Context, who *account, from sources) (binaries, error) {
	var tried []string
	dirs := candidates(from.path, from.packaged, hasServer)
	if len(dirs) == 0 {
		tried = append(tried, "this machine: no directory of PATH and no /usr/lib/postgresql/*/bin has both initdb and postgres")
	}
	for _, dir := range dirs {
		bin, err := inspect(ctx, dir, who)
		if err == nil || ctx.Err() != nil {
			return bin, err
		}
		tried = append(tried, err.Error())
	}
	bin, err := from.archive.binaries(ctx, who)
	if err == nil || ctx.Err() != nil {
		return bin, err
	}
	tried = append(tried, "download: "+err.Error())
	return binaries{}, fmt.Errorf("no PostgreSQL server is named, and none can be started%s\n"+
		"Any of these helps: install PostgreSQL %d or later (such as: apt-get install postgresql); "+
		"name a server that runs with -db or DATABASE_URL; let the download through", indent(strings.Join(tried, "\n")), oldest)
}

// candidates orders the directories that hold a server: those of PATH, then
// the packaged ones, newest major version first.
func candidates(path string, packaged []string, holds func(dir string) bool) []string {
	major := func(dir string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		return n
	}
	packaged = slices.Clone(packaged)
	slices.SortStableFunc(packaged, func(a, b string) int { return major(b) - major(a) })
	var found []string
	for _, dir := range append(filepath.SplitList(path), packaged...) {
		// A relative directory would mean another one in another process.
		if filepath.IsAbs(dir) && !slices.Contains(found, dir) && holds(dir) {
			found = append(found, dir)
		}
	}
	return found
}

// hasServer asks for both: client packages have neither, and a PATH may lead
// to only one of them.
func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

// inspect runs the server's program as the user that it will run as, who may
// not get through to it.
func inspect(ctx context.Context, dir string, who *account) (binaries, error) {
	bin := binaries{dir: dir, source: "started from the binaries in " + dir}
	out, err := run(ctx, who, "/", bin.program("postgres"), "--version")
	if err != nil {
		return binaries{}, fmt.Errorf("%s: %w%s", dir, err, indent(out))
	}
	bin.version, err = parseVersion(out)
	if err != nil {
		return binaries{}, fmt.Errorf("%s: %w", dir, err)
	}
	return bin, nil
}

var versionPattern = regexp.MustCompile(`^postgres \(PostgreSQL\) ((\d+)\S*)`)

func parseVersion(out string) (string, error) {
	m := versionPattern.FindStringSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("postgres --version says %q, which names no version", strings.TrimSpace(out))
	}
	if major, err := strconv.Atoi(m[2]); err != nil || major < oldest {
		return "", fmt.Errorf("PostgreSQL %s is older than %d", m[1], oldest)
	}
	return m[1], nil
}
