//go:build !linux

package embedded

import (
	"os"
	"syscall"
)

// Without parent-death signals a server outlives an owner that is killed.

func attributes(*account, syscall.Signal) *syscall.SysProcAttr { return nil }

func killGroup(p *os.Process) error { return p.Kill() }

// killServer kills the postmaster; its children end when they notice.
func killServer(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// isServer cannot tell a postmaster from a process that got its pid later.
func isServer(int, string) bool { return false }
