//go:build !unix

package sim

import (
	"context"
	"os"
)

// withhold needs a system that can stop a process.
func (d *database) withhold(context.Context) *os.Process { return nil }
