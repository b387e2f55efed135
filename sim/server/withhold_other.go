//go:build !unix

package server

import (
	"context"
	"os"
)

// withhold needs a system that can stop a process.
func (i *Instance) withhold(context.Context) *os.Process { return nil }
