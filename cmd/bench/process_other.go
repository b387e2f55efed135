//go:build !linux

package main

import "syscall"

func dependent() *syscall.SysProcAttr { return nil }
