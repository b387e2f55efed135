package pgtest

import (
	"slices"
	"strings"
	"testing"
)

func TestLeaked(t *testing.T) {
	caller := "goroutine 1 [running]:\nmain.main()\n\t/main.go:1"
	signals := "goroutine 5 [syscall]:\nos/signal.signal_recv()\n\t/sigqueue.go:1\nos/signal.loop()\n\t/signal.go:1\ncreated by os/signal.Notify.func1.1 in goroutine 4\n\t/signal.go:1"
	pool := "goroutine 7 [select]:\ndatabase/sql.(*DB).connectionOpener()\n\t/sql.go:1\ncreated by database/sql.OpenDB in goroutine 6\n\t/sql.go:1"
	waits := "goroutine 8 [chan receive]:\nexample.com/p.wait()\n\t/os/signal.go:1\ncreated by example.com/p.TestX in goroutine 6\n\t/p.go:1"
	for _, test := range []struct{ stacks, want []string }{
		{[]string{caller}, nil},
		{[]string{caller, signals}, nil},
		{[]string{caller, pool, signals, waits}, []string{pool, waits}},
	} {
		if got := leaked(strings.Join(test.stacks, "\n\n") + "\n"); !slices.Equal(got, test.want) {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// What forgets Main would leave its server behind.
func TestMainIsNeeded(t *testing.T) {
	var s shared
	if err := s.ensureServer(); err == nil || !strings.Contains(err.Error(), "pgtest.Main(m)") {
		t.Errorf("the error is %v", err)
	}
}
