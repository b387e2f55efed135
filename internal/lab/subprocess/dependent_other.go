//go:build !unix

package subprocess

import "syscall"

func dependent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }
