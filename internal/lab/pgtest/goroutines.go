package pgtest

import (
	"runtime"
	"strings"
	"time"
)

// goroutinesLeft waits until only the caller's goroutine is left, and returns
// the stacks of those that are not gone after patience.
func goroutinesLeft(patience time.Duration) []string {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		left := leaked(stacks())
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// stacks shows every goroutine but the runtime's own, the caller's first.
func stacks() string {
	for size := 1 << 16; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return string(buf[:n])
		}
	}
}

// leaked leaves out the first goroutine, and the one that delivers signals:
// once started, it cannot be ended.
func leaked(stacks string) []string {
	var left []string
	for _, stack := range strings.Split(strings.TrimSpace(stacks), "\n\n")[1:] {
		_, frames, _ := strings.Cut(stack, "\n")
		if !strings.HasPrefix(frames, "os/signal.") {
			left = append(left, stack)
		}
	}
	return left
}
