package lockwatch

import (
	"context"
	"time"
)

// overdueAfter is how long a handler may run after its context has ended.
const overdueAfter = time.Second

// Overdue calls report, once, if a handler still runs after ctx has ended. report returns a
// function that ends the report. The caller calls returned when the handler returns.
//
// The loop cannot report it, because it waits for the handler. Meanwhile database/sql rolls
// the transaction back, so the consumer's row is free.
func Overdue(ctx context.Context, report func() (over func())) (returned func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		select {
		case <-done:
			return
		case <-time.After(overdueAfter):
		}
		defer report()()
		<-done
	})
	return func() {
		close(done)
		if !stop() {
			<-ended
		}
	}
}
