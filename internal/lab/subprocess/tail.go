package subprocess

import "sync"

// most is how many bytes are kept.
const most = 4 << 10

// Tail keeps the last 4 KiB that were written to it. It may be read while
// somebody writes. The zero Tail is empty.
type Tail struct {
	mu   sync.Mutex
	text []byte
}

// Write never fails.
func (b *Tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	b.text = b.text[max(0, len(b.text)-most):]
	return len(p), nil
}

// String returns what is kept.
func (b *Tail) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}
