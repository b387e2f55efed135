//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package embedded

import (
	"fmt"
	"os"
	"runtime"
)

func lockFile(string, int) (*os.File, error) {
	return nil, fmt.Errorf("starting a server is not supported on %s: name one that runs with -db or DATABASE_URL", runtime.GOOS)
}

func ownedByUs(string) bool { return false }
