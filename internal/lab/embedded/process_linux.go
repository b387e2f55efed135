package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// attributes makes a child run as who, and get a signal when this process ends.
func attributes(who *account, death syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: death}
	if who != nil {
		attr.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid}
	}
	return attr
}

// killAll kills every process of the server whose data is in dir, but for the
// one to spare, and returns when all have ended. They are known by their working directory, also those
// that have lost their postmaster and run on until they notice.
func killAll(dir string, spare int) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		left, err := killOnce(dir, spare)
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("embedded: %d processes of the server in %s live %v after SIGKILL", left, dir, patience)
		}
	}
}

// killOnce tells how many processes it found. What they may have forked
// meanwhile, the next round finds.
func killOnce(dir string, spare int) (found int, err error) {
	want, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == spare || !serves(pid, want) {
			continue
		}
		found++
		// A handle, checked once more: the pid may have a new owner by now.
		if p, err := os.FindProcess(pid); err == nil {
			if serves(pid, want) {
				_ = p.Kill()
			}
			_ = p.Release()
		}
	}
	return found, nil
}

// serves is false for what has ended, even if nobody has waited for it yet, for
// processes of other users, and for a shell that somebody left there.
func serves(pid int, data os.FileInfo) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	cwd, err := os.Stat(filepath.Join(proc, "cwd"))
	if err != nil || !os.SameFile(cwd, data) {
		return false
	}
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	if errors.Is(err, os.ErrNotExist) {
		return true // it is ending, but may hold shared memory still
	}
	program := strings.TrimSuffix(filepath.Base(exe), " (deleted)")
	return err == nil && (program == "postgres" || program == "initdb")
}
