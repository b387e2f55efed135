//go:build unix

package server

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
)

// withhold stops the server's WAL writer, which would write each page at once. So asynchronous
// commits pile up for a moment, for a crash to take back. The caller must kill that process in its
// crash, too: a stopped process does not notice that it is to end. withhold returns nil if it could
// not stop the process. It stops the WAL writer only while it sleeps: awake it may hold a lock that
// every commit needs.
func (i *Instance) withhold(ctx context.Context) *os.Process {
	const tries, moment = 50, 300 * time.Millisecond
	for range tries {
		pid, err := i.sleepingWALWriter(ctx)
		if err != nil {
			return nil
		}
		if writer, err := os.FindProcess(pid); pid > 0 && err == nil && writer.Signal(syscall.SIGSTOP) == nil {
			if still, err := i.sleepingWALWriter(ctx); err == nil && still == pid {
				backoff.Sleep(ctx, moment)
				return writer
			}
			_ = writer.Signal(syscall.SIGCONT) // it woke up before it stopped
		}
		if !backoff.Sleep(ctx, time.Millisecond) {
			return nil
		}
	}
	return nil
}

// sleepingWALWriter returns its process id, 0 if it does not sleep.
func (i *Instance) sleepingWALWriter(ctx context.Context) (pid int, err error) {
	err = i.DB.QueryRowContext(ctx, `
SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE backend_type = 'walwriter' AND wait_event = 'WalWriterMain'`).Scan(&pid)
	return pid, err
}
