package events

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
	"github.com/pgfrontier/worker/sim/stage"
)

// countEvery is the least interval between two counts of what the consumers have handled.
const countEvery = time.Second

// observe samples the standings until ctx ends, and reports progress.
func (s *shared) observe(ctx context.Context) {
	var p stage.Progress
	var count time.Time // not before; a count takes longer and longer
	for backoff.Sleep(ctx, stage.SampleEvery) {
		// A poll that fails is one poll less: the oracle counts them.
		life := s.on.Life()
		sample, err := s.on.Standings(ctx)
		if err != nil || server.Ending(life) || life != s.on.Life() {
			continue
		}
		for i := range sample {
			sample[i].Life = life
		}
		s.Evidence.Samples = append(s.Evidence.Samples, sample)
		if head, err := s.on.Head(ctx); err == nil {
			p.Lag = lag(sample, head)
			s.Tally.SetLag(p.Lag)
			s.History.Add("", "", history.Sampled, sampleOf(sample, head))
		}
		if s.Plan.Progress == nil {
			continue
		}
		if began := time.Now(); began.After(count) {
			p.Handled = s.fewest(ctx)
			count = time.Now().Add(countEvery + 20*time.Since(began))
		}
		p.Elapsed = time.Since(s.Began)
		p.Appended, p.Crashes = s.output.wanted(history.Scope{}), s.Tally.Crashes()
		s.Plan.Progress(p)
	}
}

// lag is how far the last consumer is behind.
func lag(standings []history.Standing, head int64) (furthest int64) {
	for _, c := range standings {
		furthest = max(furthest, head-c.Checkpoint)
	}
	return furthest
}

// fewest is what the consumer that has handled the fewest has handled.
func (s *shared) fewest(ctx context.Context) int64 {
	handled, err := s.on.handled(ctx)
	if err != nil {
		return 0
	}
	least := int64(-1)
	for _, c := range s.scenario.Scope {
		if n := handled[c.Name]; least < 0 || n < least {
			least = n
		}
	}
	return least
}

func sampleOf(standings []history.Standing, head int64) history.Sample {
	s := history.Sample{Head: head, Lag: lag(standings, head), Checkpoints: map[string]int64{}}
	for _, c := range standings {
		s.Checkpoints[c.Consumer] = c.Checkpoint
	}
	return s
}
