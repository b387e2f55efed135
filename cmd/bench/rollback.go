package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// behind is how many events follow the append that rolls back.
const behind = 20

// rollback measures what a rolled-back append costs the events behind it.
func rollback(ctx context.Context, l *lab) (rows []row, err error) {
	for _, x := range []struct {
		part string
		dispatcher
		gap  bool
		goal string
		most time.Duration
	}{
		{"notify", notify, true, "p99 <= 20 ms", 20 * time.Millisecond},
		{"control: notify, none rolls back", notify, false, "", 0},
		{"poll", poll, true, "p99 <= DispatcherInterval + 20 ms", poll.latency + 20*time.Millisecond},
	} {
		took, counted, err := l.rounds(ctx, x.dispatcher, x.gap)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", x.part, err)
		}
		rows = append(rows, row{
			part: x.part, measured: took.String(),
			goal: x.goal, reached: took.p99() <= x.most, counted: counted,
		})
	}
	return rows, nil
}

func (l *lab) rounds(ctx context.Context, d dispatcher, gap bool) (took durations, counted int, err error) {
	err = l.onSite(ctx, func(s *site) error {
		j, r := newJournal(s, d.channel), newRecorder("rollback")
		err := s.work(ctx, 1, asConsumers([]*recorder{r}), d.options(s), func(ctx context.Context) error {
			if err := warmUp(ctx, j, r); err != nil {
				return err
			}
			for range l.size.rounds {
				if err := pause(ctx, rand.N(d.latency+10*time.Millisecond)); err != nil {
					return err
				}
				t, err := round(ctx, j, r, gap)
				if err != nil {
					return err
				}
				took = append(took, t)
			}
			return nil
		})
		if err == nil {
			counted, err = j.audit(ctx, r)
		}
		return err
	})
	return took, counted, err
}

func round(ctx context.Context, j *journal, r *recorder, gap bool) (time.Duration, error) {
	if gap {
		if err := j.append(ctx, false); err != nil {
			return 0, err
		}
	}
	for range behind {
		if err := j.append(ctx, true); err != nil {
			return 0, err
		}
	}
	if err := j.settle(ctx, r); err != nil {
		return 0, err
	}
	last, committed := j.head()
	return max(r.handled(last).Sub(committed), 0), nil
}
