package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// latency measures single appends far enough apart not to meet.
func latency(ctx context.Context, l *lab) (rows []row, err error) {
	var h heard
	var bare durations
	lags, counted, err := l.singles(ctx, notify, func(s *site, j *journal, during func() error) error {
		err := s.beside(ctx, h.listen, during)
		bare = h.lags(j, l.size.appends)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	rows = append(rows,
		row{
			part: "notify", measured: lags.String(), counted: counted,
			goal: "p50 <= 1 ms, p99 <= 3 ms", reached: lags.p50() <= time.Millisecond && lags.p99() <= 3*time.Millisecond,
		},
		row{part: "control: a bare LISTEN hears of them", measured: bare.String()},
	)
	lags, counted, err = l.singles(ctx, poll, func(_ *site, _ *journal, during func() error) error { return during() })
	if err != nil {
		return rows, fmt.Errorf("poll: %w", err)
	}
	return append(rows, row{
		part: "poll", measured: lags.String(), counted: counted,
		goal: "p99 <= DispatcherInterval + 3 ms", reached: lags.p99() <= poll.latency+3*time.Millisecond,
	}), nil
}

// singles appends now and then, with a control around it.
func (l *lab) singles(ctx context.Context, d dispatcher, control func(*site, *journal, func() error) error) (lags durations, counted int, err error) {
	err = l.onSite(ctx, func(s *site) error {
		j, r := newJournal(s, d.channel), newRecorder("latency")
		err := s.work(ctx, 1, asConsumers([]*recorder{r}), d.options(s), func(ctx context.Context) error {
			return control(s, j, func() error {
				if err := warmUp(ctx, j, r); err != nil {
					return err
				}
				began := time.Now()
				for range l.size.appends {
					// 20 ms on average, and in no step with the dispatcher.
					if err := pause(ctx, 10*time.Millisecond+rand.N(20*time.Millisecond)); err != nil {
						return err
					}
					if err := j.append(ctx, true); err != nil {
						return err
					}
				}
				err := j.settle(ctx, r)
				lags = j.lags(r, began, time.Now())
				return err
			})
		})
		if err == nil {
			counted, err = j.audit(ctx, r)
		}
		return err
	})
	return lags, counted, err
}
