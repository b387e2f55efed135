package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// attributes makes the child run as who, in a process group of its own (an
// interrupt typed at the terminal is for its owner to handle), and get a signal
// when the thread that forked it ends.
func attributes(who *account, death syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
	if who != nil {
		attr.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid}
	}
	return attr
}

// killGroup kills a child made with attributes, and what it started.
func killGroup(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGKILL) }

// killPatience bounds the wait for processes that were killed. The kernel takes
// milliseconds; more means that one hangs in it.
const killPatience = 10 * time.Second

// killServer kills a postmaster and all its children, and returns when only
// the postmaster itself may still have to be waited for. Killing the postmaster
// alone leaves children that run until they notice.
func killServer(pid int) error {
	// A stopped postmaster neither forks nor reaps: no child is missed, and no
	// pid comes to mean another process.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("embedded: the server (pid %d) cannot be stopped: %w", pid, err)
	}
	if err := waitState(pid, "TtZX"); err != nil {
		return err
	}
	children, err := childrenOf(pid)
	for _, child := range children {
		err = errors.Join(err, syscall.Kill(child, syscall.SIGKILL))
	}
	for _, child := range children {
		err = errors.Join(err, waitState(child, "ZX"))
	}
	return errors.Join(err, syscall.Kill(pid, syscall.SIGKILL), waitState(pid, "ZX"))
}

// waitState waits until a process is in one of the states, or gone.
func waitState(pid int, states string) error {
	for deadline := time.Now().Add(killPatience); ; time.Sleep(time.Millisecond) {
		state, _, err := stat(pid)
		if err != nil || strings.Contains(states, state) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("embedded: process %d is in state %s %v after it was signalled, not in one of %s", pid, state, killPatience, states)
		}
	}
}

func childrenOf(parent int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var children []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if _, ppid, err := stat(pid); err == nil && ppid == parent {
				children = append(children, pid)
			}
		}
	}
	return children, nil
}

// stat reads a process's state and parent, see proc(5). The name, in brackets,
// may hold anything.
func stat(pid int) (state string, parent int, err error) {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, err
	}
	fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
	if len(fields) < 2 {
		return "", 0, fmt.Errorf("process %d: unexpected %q", pid, line)
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return string(fields[0]), parent, err
}

// isServer tells whether the process is the postmaster of that data directory.
func isServer(pid int, data string) bool {
	args, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && bytes.Contains(args, []byte("-D\x00"+data+"\x00"))
}
