//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package embedded

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// lockFile opens path and locks it, without waiting, for as long as the file
// stays open. It fails with errInUse if it is locked, and with fs.ErrNotExist
// if it is not there, or no more.
func lockFile(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|flag, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockHeld(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func lockHeld(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errInUse
	}
	if err != nil {
		return &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	// It may have been removed between the opening and the locking.
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(f.Name())
	if err != nil {
		return err
	}
	if !os.SameFile(mine, there) {
		return fs.ErrNotExist
	}
	return nil
}

// ownedByUs keeps a sweep by root away from what other users put in its way.
func ownedByUs(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
