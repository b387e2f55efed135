package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// archive is where downloaded binaries come from and stay.
type archive struct {
	cache      string // a directory
	repository string // base URL; empty: the library's own
}

const archiveVersion = embeddedpostgres.V18

// cacheDir is the library's own; for root one that other users can reach.
func cacheDir() string {
	const name = "embedded-postgres-go"
	if os.Geteuid() == 0 {
		return filepath.Join("/var/cache", name)
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(cmp.Or(home, "/"), "."+name)
}

// binaries returns the downloaded binaries, which are fetched and unpacked once.
func (a archive) binaries(ctx context.Context, who *account) (binaries, error) {
	unpacked := filepath.Join(a.cache, fmt.Sprintf("postgres-%s-%s-%s", archiveVersion, runtime.GOOS, runtime.GOARCH))
	dir := filepath.Join(unpacked, "bin")
	if !hasServer(dir) {
		if err := a.obtain(ctx, unpacked); err != nil {
			return binaries{}, err
		}
	}
	bin, err := inspect(ctx, dir, who)
	bin.source = "started from the downloaded binaries in " + dir
	return bin, err
}

// obtain fills the directory unpacked, one process at a time. When ctx ends, a
// download that has begun goes on without us, as the library has no way to end
// it: it fills the cache for the next time.
func (a archive) obtain(ctx context.Context, unpacked string) error {
	if err := os.MkdirAll(a.cache, 0o755); err != nil {
		return err
	}
	lock, err := waitLock(ctx, filepath.Join(a.cache, lockName))
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer lock.Close()
		done <- a.unpack(unpacked)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func waitLock(ctx context.Context, path string) (*os.File, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		lock, err := lockFile(path, os.O_CREATE)
		if !errors.Is(err, errInUse) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

const stagingPrefix = "unpacking-"

// unpack works beside its aim, which is either complete or not there.
func (a archive) unpack(unpacked string) (err error) {
	if hasServer(filepath.Join(unpacked, "bin")) {
		return nil // somebody else did while we waited for the lock
	}
	killed, _ := filepath.Glob(filepath.Join(a.cache, stagingPrefix+"*"))
	for _, path := range killed {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return err
	}
	staging, err := os.MkdirTemp(a.cache, stagingPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(staging)) }()
	binaries := filepath.Join(staging, "binaries")
	if err := a.fetch(staging, binaries); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := letOthersRead(a.cache, binaries); err != nil {
			return err
		}
	}
	return os.Rename(binaries, unpacked)
}

// fetch has the library download (unless the archive is in its cache) and
// unpack. All it can do is start a server; but it refuses to, right after
// unpacking, if there can be no data directory. So nothing runs that would
// have to be stopped, and root need not become another user for it.
func (a archive) fetch(staging, binaries string) error {
	file := filepath.Join(staging, "not-a-directory")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	impossible := filepath.Join(file, "data")
	cfg := embeddedpostgres.DefaultConfig().Version(archiveVersion).
		CachePath(a.cache).RuntimePath(filepath.Join(staging, "runtime")).
		BinariesPath(binaries).DataPath(impossible).
		Port(0). // any is free
		Logger(io.Discard)
	if a.repository != "" {
		cfg = cfg.BinaryRepositoryURL(a.repository)
	}
	server := embeddedpostgres.NewDatabase(cfg)
	err := server.Start()
	removeLibraryLog()
	runtime.KeepAlive(server) // with the log open, by which it is found
	if err == nil {
		return errors.Join(errors.New("embedded-postgres started a server that it could not start"), server.Stop())
	}
	if strings.Contains(err.Error(), impossible) {
		return nil
	}
	return err
}

// removeLibraryLog removes the log that the library leaves, and leaves open, in
// the directory for temporary files.
func removeLibraryLog() {
	open, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range open {
		path, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		if strings.HasPrefix(filepath.Base(path), "embedded_postgres_log") {
			_ = os.Remove(path)
		}
	}
}

// letOthersRead undoes a strict umask of root, whose server runs as another
// user.
func letOthersRead(dir, tree string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o044
		if mode&0o100 != 0 {
			mode |= 0o011
		}
		return os.Chmod(path, mode)
	})
}
