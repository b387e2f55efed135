package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// A home is the directory of one server. It is named for people after the
// process that owns it, but what proves that the owner lives is a lock on a
// file in it, which the kernel drops with the process: pids are used again.
type home struct {
	path string
	lock *os.File
}

const (
	homePrefix = "pgfrontier-"
	lockName   = "lock"
)

// errInUse: another process has the lock.
var errInUse = errors.New("locked by another process")

func newHome(root string) (*home, error) {
	for {
		path, err := os.MkdirTemp(root, fmt.Sprintf("%s%d-", homePrefix, os.Getpid()))
		if err != nil {
			return nil, fmt.Errorf("embedded: no directory for the server: %w", err)
		}
		lock, err := lockFile(filepath.Join(path, lockName), os.O_CREATE)
		if errors.Is(err, errInUse) || errors.Is(err, fs.ErrNotExist) {
			continue // a sweep came between making the directory and locking it
		}
		h := &home{path: path, lock: lock}
		if err == nil {
			// The server may run as another user, who must get through.
			err = os.Chmod(path, 0o755)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("embedded: no directory for the server: %w", err), h.remove())
		}
		return h, nil
	}
}

func (h *home) data() string   { return filepath.Join(h.path, "data") }
func (h *home) copy() string   { return filepath.Join(h.path, "copy") }
func (h *home) log() string    { return filepath.Join(h.path, "log") }
func (h *home) origin() string { return filepath.Join(h.path, "origin") } // of a Pristine

func (h *home) remove() error {
	err := removeHome(h.path)
	if h.lock != nil {
		err = errors.Join(err, h.lock.Close())
	}
	return err
}

// removeHome takes the lock file last, so that a sweep still recognises a home
// that was left half removed. It takes the origin first, so that nobody trusts a
// copy of a home that is half removed.
func removeHome(path string) error {
	if err := os.Remove((&home{path: path}).origin()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	unmountDisk((&home{path: path}).data())
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		if e.Name() != lockName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(path, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// sweep removes the homes whose owner has died, with the server if it lives
// still. It is best effort: what cannot be removed now is left to the next.
func sweep(dir string) {
	paths, _ := os.ReadDir(dir)
	for _, e := range paths {
		if matched, _ := filepath.Match(homePrefix+"*-*", e.Name()); matched && e.IsDir() {
			sweepHome(filepath.Join(dir, e.Name()))
		}
	}
}

func sweepHome(path string) {
	if !ownedByUs(path) {
		return
	}
	lock, err := lockFile(filepath.Join(path, lockName), 0)
	if errors.Is(err, fs.ErrNotExist) {
		// Its owner died before it locked it, or is about to and will notice.
		_ = os.Remove(path)
		return
	}
	if err != nil {
		return
	}
	defer lock.Close()
	if killAll((&home{path: path}).data(), 0) == nil {
		_ = removeHome(path)
	}
}
