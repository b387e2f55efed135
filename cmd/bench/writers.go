package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// appendRate is how many appends a second there are.
const appendRate = 1_000

// writers is how many write at a time where they do all they can.
const writers = 20

// appendAll appends n events, one after the other, and waits until they are
// handled.
func appendAll(ctx context.Context, j *journal, n int, recorders []*recorder) error {
	for range n {
		if err := j.append(ctx, true); err != nil {
			return err
		}
	}
	return j.settle(ctx, recorders...)
}

// crowd runs step in n goroutines until it says that it has enough, or fails.
func crowd(ctx context.Context, n int, step func(context.Context) (more bool, err error)) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				more, err := step(ctx)
				if err != nil {
					fail(err)
				}
				if !more {
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// appendFor appends appendRate events a second for d.
func (j *journal) appendFor(ctx context.Context, d time.Duration) error {
	return paced(ctx, int(appendRate*d.Seconds()), d, func(ctx context.Context, _ int) error { return j.append(ctx, true) })
}

// paced runs n steps spread evenly over d, and several at a time where they
// are late.
func paced(ctx context.Context, n int, d time.Duration, step func(ctx context.Context, i int) error) error {
	began := time.Now()
	var next atomic.Int64
	return crowd(ctx, 8, func(ctx context.Context) (more bool, err error) {
		i := int(next.Add(1)) - 1
		if i >= n {
			return false, nil
		}
		if err := pause(ctx, time.Until(began.Add(d*time.Duration(i)/time.Duration(n)))); err != nil {
			return false, err
		}
		return true, step(ctx, i)
	})
}
