//go:build !linux

package embedded

import "syscall"

// Without parent-death signals a server outlives an owner that is killed, until
// a sweep takes its files: a postmaster looks for its pid file every minute.
// Without /proc its processes are not found: those of a killed postmaster end
// when they notice.

func attributes(*account, syscall.Signal) *syscall.SysProcAttr { return nil }

func killAll(string, int) error { return nil }
