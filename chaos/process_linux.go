package chaos

import "syscall"

// dependent makes a process end with the thread that forked it, also while it
// is stopped, and not at an interrupt typed at the terminal, which is for its
// parent to handle.
func dependent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
