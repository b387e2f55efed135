//go:build unix && !linux

package chaos

import "syscall"

func dependent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
