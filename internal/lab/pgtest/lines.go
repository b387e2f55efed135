package pgtest

import (
	"strings"
	"sync"
)

// Lines is what a logger has written. Any number of goroutines may use it. The zero value is
// empty.
type Lines struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write is that of [io.Writer].
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
