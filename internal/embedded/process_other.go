//go:build !linux

package embedded

import "syscall"

// Without parent-death signals a server outlives an owner that is killed, and
// without /proc its processes are not found: those of a killed postmaster end
// when they notice.

func attributes(*account, syscall.Signal) *syscall.SysProcAttr { return nil }

func killAll(string, int) error { return nil }
