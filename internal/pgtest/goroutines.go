package pgtest

import (
	"runtime"
	"strings"
	"time"
)

// waitForGoroutines waits until the tests' goroutines have ended, and returns
// the stacks of those that have not after patience.
func waitForGoroutines(patience time.Duration) []string {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		left := foreign(allStacks())
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// allStacks is the stack of every goroutine, the calling one first.
func allStacks() string {
	for size := 1 << 16; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return string(buf[:n])
		}
	}
}

// foreign leaves out of a stack dump its first goroutine and those that the
// runtime and the testing package run for ever.
func foreign(dump string) []string {
	var left []string
	for _, stack := range strings.Split(strings.TrimSpace(dump), "\n\n")[1:] {
		_, frames, _ := strings.Cut(stack, "\n")
		if !strings.HasPrefix(frames, "os/signal.") && !strings.Contains(stack, "\ncreated by testing.") && !strings.Contains(stack, "\ncreated by runtime.") && !strings.Contains(stack, "runtime/pprof.") {
			left = append(left, stack)
		}
	}
	return left
}
