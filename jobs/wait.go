package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/pgfrontier/worker/internal/errtext"
)

// Wait waits until a job has ended, and returns its result. If the job has no result, Wait returns
// the zero value. If the job has not completed, Wait returns a [FailedError]. If no row of the job is
// left, it returns [ErrNotFound]: in a queue of retention 0, also for a job that completed before Wait
// was called, or just then. Call Wait after the commit of the transaction that enqueued the job.
//
// With [WithNotifyConnectionString] a client is notified of the end, and polls once a second
// besides. Without the option a client polls more often at first. Give ctx a deadline.
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

// await returns a job once it has finished.
func (c *Client) await(ctx context.Context, id int64) (info Info, err error) {
	if c == nil {
		return info, errors.New("client is nil: make one with NewClient")
	}
	if c.err != nil {
		return info, c.err
	}
	err = c.ends.Until(ctx, strconv.FormatInt(id, 10), func() (over bool, err error) {
		// Await requests the notification before it reads the job. So a later end is notified.
		if unfinished, err := c.queue.Await(ctx, c.db, id); unfinished || err != nil {
			return false, err
		}
		info, err = c.get(ctx, c.db, id)
		return true, err
	})
	return info, err
}
