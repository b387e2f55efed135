package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// pollInterval is that of the rows without LISTEN, for both sides. River's
// default is a second.
const pollInterval = 200 * time.Millisecond

func latencies(options) []group {
	const slots = 100
	defaults, tuned, polled := config{slots: slots}, config{slots: slots, tuned: true}, config{slots: slots, poll: pollInterval}
	notified := []contestant{{theirs, "defaults", defaults}, {theirs, "tuned", tuned}, {ours, "defaults", defaults}}
	pairs := [][2]int{{0, 2}, {1, 2}}
	return []group{
		latency("notified, one by one", 30, 0, pairs, notified...),
		latency("notified, 20 a second", 120, 20, pairs, notified...),
		latency(fmt.Sprintf("polled each %s, 20 a second", pollInterval), 120, 20, duel, contestant{theirs, "", polled}, contestant{ours, "", polled}),
	}
}

// latency measures single jobs. They come at a rate, or, if that is 0, each a
// while after the one before has run.
func latency(about string, jobs, rate int, pairs [][2]int, contestants ...contestant) group {
	return group{about, contestants, pairs, func(ctx context.Context, s *site, p peer) (r result, err error) {
		const warm = 5 // jobs at first that do not count: connections, statements, LISTEN
		s.tally = newTally(warm + jobs)
		if err := s.settle(ctx); err != nil {
			return r, err
		}
		r.jobs = jobs
		err = working(ctx, p, func() error {
			for i := range warm {
				if err := p.enqueue(ctx, i, 1); err != nil {
					return err
				}
				if err := s.ran(ctx, i+1); err != nil {
					return err
				}
			}
			enqueued := make([]time.Time, jobs)
			r.took, err = s.measured(ctx, func() error {
				began := time.Now()
				for i := range enqueued {
					wait := 150*time.Millisecond + rand.N(200*time.Millisecond)
					if rate > 0 {
						wait = time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate)))
					}
					if err := pause(ctx, wait); err != nil {
						return err
					}
					enqueued[i] = time.Now()
					if err := p.enqueue(ctx, warm+i, 1); err != nil {
						return err
					}
					if rate == 0 {
						if err := s.ran(ctx, warm+i+1); err != nil {
							return err
						}
					}
				}
				return s.ran(ctx, warm+jobs)
			})
			for i, at := range enqueued {
				began := s.tally.epoch.Add(time.Duration(s.tally.began[warm+i].Load()))
				r.latencies = append(r.latencies, began.Sub(at))
			}
			return err
		})
		if err == nil {
			err = s.check(ctx, p, noop)
		}
		return r, err
	}}
}

// ran waits until so many jobs have run.
func (s *site) ran(ctx context.Context, jobs int) error {
	return s.until(ctx, fmt.Sprintf("job %d to run", jobs), func() (bool, error) { return s.tally.total() >= jobs, nil })
}
