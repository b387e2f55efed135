//go:build !linux

package embedded

import (
	"errors"
	"syscall"
)

// Without parent-death signals a server outlives an owner that is killed, until
// a sweep takes its files: a postmaster checks its pid file every minute.
// Without /proc its processes are not found: those of a killed postmaster end
// when they notice.

func attributes(*account, syscall.Signal) *syscall.SysProcAttr { return nil }

func killAll(string, int) error { return nil }

var errNoDisk = errors.New("a disk in memory needs Linux")

func mountDisk(string, int64) error { return errNoDisk }

func unmountDisk(string) {}

func fillDisk(string) error { return errNoDisk }

func freeDisk(string, int64) error { return errNoDisk }

func hasRoom(string, uint64) bool { return false }
