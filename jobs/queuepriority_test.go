package jobs_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
)

// While a queue of a higher priority has jobs, it gets all shared slots. The order of the options
// does not matter, nor which queue has waited longer.
func TestQueuePriority(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		s.note("%s", j.Queue)
		return nil
	})
	each := tier.Amount(10, 30)
	var ids []int64
	for _, queue := range []string{"low", "middle", "high"} {
		for n := range each {
			ids = append(ids, s.add(task{n}, jobs.Queue(queue)))
		}
	}
	s.run(jobs.WithQueue("low", 2), jobs.WithQueue("high", 2), jobs.WithQueue("middle", 2), jobs.WithConcurrency(2),
		jobs.WithQueuePriority("high", 1), jobs.WithQueuePriority("low", 9), jobs.WithPrefetch(1))
	for _, id := range ids {
		s.ended(id)
	}
	notes := s.notes()
	for i, want := range []string{"high", "middle", "low"} {
		// The two jobs that run at once record their starts in any order.
		for n, got := range notes[i*each+1 : (i+1)*each-1] {
			if got != want {
				t.Fatalf("start %d is of queue %s, want %s: %q", i*each+1+n, got, want, notes)
			}
		}
	}
}

// A free slot goes to the queue of the higher priority, though another queue has waited longer. The
// next free slot goes to the other queue.
func TestNextSlotIsOfTheHigherPriority(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	next, started := make(chan struct{}), make(chan string, 100)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		started <- j.Queue
		<-next
		return nil
	})
	var ids []int64
	for n := range 4 {
		ids = append(ids, s.add(task{n}, jobs.Queue("low")))
	}
	w := s.run(jobs.WithQueue("low", 5), jobs.WithQueue("high", 5), jobs.WithConcurrency(1), jobs.WithQueuePriority("high", 4))
	order := <-started
	ids = append(ids, s.add(task{}, jobs.Queue("high")))
	s.until("the worker to see the job of the higher priority", func() bool { return jobs.WantsSlots(w, "high") })
	for range 4 {
		next <- struct{}{}
		order += " " + <-started
	}
	close(next)
	for _, id := range ids {
		s.ended(id)
	}
	if order != "low high low low low" {
		t.Errorf("they started in the order %s", order)
	}
}

// A claim takes at most its batch. The next claim follows at once, so all slots are used.
func TestClaimBatch(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var running atomic.Int64
	all := make(chan struct{})
	jobs.Register(s.Handlers, func(ctx context.Context, _ *jobs.Job[task]) error {
		if running.Add(1) == 10 {
			close(all)
		}
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	var ids []int64
	for n := range 30 {
		ids = append(ids, s.add(task{n}))
	}
	s.run(jobs.WithQueue("default", 10), jobs.WithPrefetch(5), jobs.WithClaimBatch(3), jobs.WithObserver(observe.On(func(c observe.JobsClaimed) { s.note("%d", c.Jobs) })))
	for _, id := range ids {
		s.ended(id)
	}
	for _, n := range s.notes() {
		if n > "3" || len(n) > 1 {
			t.Errorf("a claim took %s jobs, its batch is 3", n)
		}
	}
	if fmt.Sprint(s.notes()[0]) != "3" {
		t.Errorf("the first claim took %s jobs of 30, its batch is 3", s.notes()[0])
	}
}

// large are arguments of any size.
type large struct{ Text string }

func (large) Kind() string { return "large" }

// After large jobs a claim takes fewer, since it holds the arguments of all in memory.
func TestClaimAfterLargeJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[large]) error { return nil })
	claimed := make(chan int, 100)
	s.run(jobs.WithQueue("default", 60), jobs.WithObserver(observe.On(func(c observe.JobsClaimed) { claimed <- c.Jobs })))
	s.ended(s.add(large{strings.Repeat("x", jobs.MaxArgs-100)}))
	<-claimed
	var entries []jobs.EnqueueParams
	for range 40 {
		entries = append(entries, jobs.EnqueueParams{Args: large{}})
	}
	if _, err := s.EnqueueMany(t.Context(), nil, entries); err != nil {
		t.Fatal(err)
	}
	if n := <-claimed; n != 32 {
		t.Errorf("a claim took %d jobs of 40, want 32", n)
	}
}
