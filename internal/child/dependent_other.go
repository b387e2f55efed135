//go:build !unix

package child

import "syscall"

func dependent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }
