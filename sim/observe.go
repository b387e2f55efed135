package sim

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/history"
)

// Progress is how far a run has come.
type Progress struct {
	Elapsed  time.Duration
	Appended int64 // events
	Handled  int64 // events, by the consumer that has handled the fewest
	Crashes  int64
	Lag      int64 // positions, of the consumer that is furthest behind
}

const (
	sampleEvery = 100 * time.Millisecond
	countEvery  = time.Second
)

// observe samples the standings until ctx ends, and reports progress.
func (s *simulation) observe(ctx context.Context) {
	var p Progress
	var count time.Time // not before; it takes longer and longer
	for backoff.Sleep(ctx, sampleEvery) {
		// A look that fails is one look less: the oracle counts them.
		life := s.on.life()
		sample, err := s.on.standings(ctx)
		if err != nil || ends(life) || life != s.on.life() {
			continue
		}
		for i := range sample {
			sample[i].Life = life
		}
		s.evidence.Samples = append(s.evidence.Samples, sample)
		if head, err := s.on.head(ctx); err == nil {
			p.Lag = lag(sample, head)
			s.tally.setLag(p.Lag)
			s.history.Add("", "", history.Sampled, sampleOf(sample, head))
		}
		if s.config.Progress == nil {
			continue
		}
		if began := time.Now(); began.After(count) {
			p.Handled = s.fewest(ctx)
			count = time.Now().Add(countEvery + 20*time.Since(began))
		}
		p.Elapsed = time.Since(s.began)
		p.Appended, p.Crashes = s.tally.wanted(history.Scope{}), s.tally.crashes()
		s.config.Progress(p)
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
func (s *simulation) fewest(ctx context.Context) int64 {
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
