package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// scenario is a question, and the groups of runs that answer it.
type scenario struct {
	name, about string
	groups      func(options) []group
}

var scenarios = []scenario{
	{"noop", "jobs that do nothing, enqueued before: from the start of a worker until all are completed", noops},
	{"tx", "the same with one INSERT for each, in one transaction with the job's completion", txs},
	{"bulk", "enqueueing in bulk, one batch after the other, while no worker runs", bulks},
	{"latency", "a quiet system: from before a job is enqueued to the start of its handler, one by one and 20 a second", latencies},
}

// group is what is measured in turns, in the same way.
type group struct {
	about       string
	contestants []contestant
	pairs       [][2]int // contestants to compare: River's, ours; a row of the table each
	measure     func(ctx context.Context, s *site, p peer) (result, error)
}

// contestant is a side with its configuration.
type contestant struct {
	side   side
	way    string // what its configuration is called
	config config
}

// result is what one run measured: a rate or latencies.
type result struct {
	jobs      int
	took      time.Duration
	latencies durations
	spent     spent
	said      []statement
}

func (r result) rate() float64 { return float64(r.jobs) / r.took.Seconds() }

func (r result) text() string {
	if r.latencies != nil {
		return r.latencies.String()
	}
	return grouped(r.rate()) + " jobs/s"
}

// duel is the only pair of a group of two.
var duel = [][2]int{{0, 1}}

func noops(o options) (all []group) {
	for _, slots := range o.slots {
		defaults, tuned, ahead := config{slots: slots}, config{slots: slots, tuned: true}, config{slots: slots, prefetch: slots}
		// With its defaults River starts so many jobs in five seconds at most.
		few := min(o.jobs, 50*slots)
		all = append(all,
			workOff(slots, few, noop, duel, contestant{theirs, "defaults", defaults}, contestant{ours, "defaults", defaults}),
			workOff(slots, o.jobs, noop, [][2]int{{0, 1}, {0, 2}},
				contestant{theirs, "tuned", tuned}, contestant{ours, "defaults", defaults}, contestant{ours, "prefetch", ahead}))
	}
	return all
}

func txs(o options) (all []group) {
	for _, slots := range o.slots {
		tuned, one, batch := config{slots: slots, tuned: true, work: tx}, config{slots: slots, work: tx}, config{slots: slots, work: batchTx}
		all = append(all, workOff(slots, o.jobs/10, tx, [][2]int{{0, 1}, {0, 2}},
			contestant{theirs, "JobCompleteTx", tuned}, contestant{ours, "RegisterTx", one}, contestant{ours, "RegisterBatchTx", batch}))
	}
	return all
}

// workOff measures how long a worker takes for jobs that are there.
func workOff(slots, jobs int, w work, pairs [][2]int, contestants ...contestant) group {
	about := fmt.Sprintf("%s jobs, %s slots", grouped(jobs), grouped(slots))
	return group{about, contestants, pairs, func(ctx context.Context, s *site, p peer) (r result, err error) {
		s.tally = newTally(jobs)
		if err := s.enqueueAll(ctx, p, 5_000); err != nil {
			return r, err
		}
		if err := s.settle(ctx); err != nil {
			return r, err
		}
		r.jobs = jobs
		var stop func() error
		r.took, err = s.measured(ctx, func() (err error) {
			if stop, err = p.start(ctx); err != nil {
				return err
			}
			return s.allCompleted(ctx, p)
		})
		if stop != nil {
			err = errors.Join(err, stop())
		}
		if err == nil {
			err = s.check(ctx, p, w)
		}
		return r, err
	}}
}

func bulks(o options) (all []group) {
	for _, batch := range []int{1_000, 10_000} {
		c := config{slots: 1_000, tuned: true}
		fast := c
		fast.fast = true
		all = append(all, bulk(o.jobs, batch, [][2]int{{0, 2}, {1, 2}},
			contestant{theirs, "InsertMany", c}, contestant{theirs, "InsertManyFast", fast}, contestant{ours, "EnqueueMany", c}))
	}
	return all
}

// bulk measures how long a client takes to enqueue, and then lets the jobs run.
func bulk(jobs, batch int, pairs [][2]int, contestants ...contestant) group {
	about := fmt.Sprintf("%s jobs in batches of %s", grouped(jobs), grouped(batch))
	return group{about, contestants, pairs, func(ctx context.Context, s *site, p peer) (r result, err error) {
		s.tally = newTally(jobs)
		if err := s.settle(ctx); err != nil {
			return r, err
		}
		r.jobs = jobs
		r.took, err = s.measured(ctx, func() error { return s.enqueueAll(ctx, p, batch) })
		if err == nil {
			err = working(ctx, p, func() error { return s.allCompleted(ctx, p) })
		}
		if err == nil {
			err = s.check(ctx, p, noop)
		}
		return r, err
	}}
}

// allCompleted waits until all jobs of the tally are completed in the tables.
func (s *site) allCompleted(ctx context.Context, p peer) error {
	return s.until(ctx, "all jobs to be completed", func() (bool, error) {
		if s.tally.total() < len(s.tally.runs) {
			return false, nil
		}
		more, err := p.unfinished(ctx)
		return !more, err
	})
}
