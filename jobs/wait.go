package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/listen"
)

// Wait waits until a job has ended, and returns its result: the zero value if it
// has none. If the job has not completed, it returns a [FailedError].
//
// A client with [WithNotifyConnectionString] hears of the end; it looks each
// second besides, and one without looks more often at first. Give ctx a deadline.
func Wait[R any](ctx context.Context, c *Client, id int64) (result R, err error) {
	info, err := c.await(ctx, id)
	if err != nil {
		return result, fmt.Errorf("jobs: wait for job %d: %w", id, errtext.Of(err))
	}
	if info.State != StateCompleted {
		return result, &FailedError{ID: id, State: info.State, Code: info.Code, Text: info.Error}
	}
	if info.Result == nil {
		return result, nil
	}
	if err := json.Unmarshal(info.Result, &result); err != nil {
		return result, fmt.Errorf("jobs: the result of job %d is no %T: %w", id, result, err)
	}
	return result, nil
}

// Pauses between two looks of a waiter.
const (
	firstLook = 10 * time.Millisecond
	lastLook  = time.Second
)

// await returns a job once it has finished.
func (c *Client) await(ctx context.Context, id int64) (Info, error) {
	if c.err != nil {
		return Info{}, c.err
	}
	ended, leave := c.waits.join(ctx, c, id)
	defer leave()
	pause := firstLook
	if c.waits.notify != "" {
		pause = lastLook
	}
	for {
		// Before the look: what ends after it is told.
		unfinished, err := c.queue.Await(ctx, c.db, id)
		if err != nil {
			return Info{}, err
		}
		if !unfinished {
			return c.get(ctx, c.db, id)
		}
		select {
		case <-ended:
		case <-time.After(pause):
			pause = min(2*pause, lastLook)
		case <-ctx.Done():
			return Info{}, context.Cause(ctx)
		}
	}
}

// waits are the goroutines of a client that wait for jobs. While there are any, one
// connection listens for all.
type waits struct {
	notify string

	mu   sync.Mutex
	of   map[int64]map[chan struct{}]bool // by job
	stop context.CancelFunc               // of the listener
	over chan struct{}                    // closed when it has ended
}

func newWaits(notify string) *waits {
	return &waits{notify: notify, of: map[int64]map[chan struct{}]bool{}}
}

// join returns a channel that hears of the end of a job, until leave.
func (w *waits) join(ctx context.Context, c *Client, id int64) (ended <-chan struct{}, leave func()) {
	if w.notify == "" {
		return nil, func() {}
	}
	mine := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[id] == nil {
		w.of[id] = map[chan struct{}]bool{}
	}
	w.of[id][mine] = true
	if w.stop == nil {
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		over := make(chan struct{})
		w.stop, w.over = stop, over
		go func() {
			defer close(over)
			w.listen(ctx, c)
		}()
	}
	return mine, func() { w.leave(id, mine) }
}

// leave ends the listener with the last who waits, and waits for it.
func (w *waits) leave(id int64, mine chan struct{}) {
	w.mu.Lock()
	delete(w.of[id], mine)
	if len(w.of[id]) == 0 {
		delete(w.of, id)
	}
	var over chan struct{}
	if len(w.of) == 0 && w.stop != nil {
		w.stop()
		over, w.stop, w.over = w.over, nil, nil
	}
	w.mu.Unlock()
	if over != nil {
		<-over
	}
}

// listen passes on which jobs have ended. Without it the waiters look.
func (w *waits) listen(ctx context.Context, c *Client) {
	_, ends, err := c.queue.Channels(ctx, c.db)
	if err != nil {
		return
	}
	_ = listen.Run(ctx, w.notify, map[string]func(string){ends: w.tell}, listen.Health{
		Connected: func() {}, Lost: func(error) {}, Doubted: func() bool { return false }, Answered: func() {},
	})
}

// tell wakes who waits for a job; all of them after the listener has connected.
func (w *waits) tell(said string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, err := strconv.ParseInt(said, 10, 64)
	for job, all := range w.of {
		if errors.Is(err, strconv.ErrSyntax) || job == id {
			for c := range all {
				select {
				case c <- struct{}{}:
				default:
				}
			}
		}
	}
}
