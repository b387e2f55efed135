package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/control"
)

// appendRate is how many appends a second there are.
const appendRate = 1_000

// writersName is the application_name of the sessions of a site's own pool.
const writersName = "bench writers"

// costs is what consumers at the head of the log cost.
type costs struct {
	handled    int // deliveries
	appends    float64
	cpu        time.Duration // of the server, without the writers'
	cpuErr     error         // why it is not known
	statements int64
}

// each is what one delivery costs, the CPU time in microseconds.
func (c costs) each() (statements, cpu float64) {
	return float64(c.statements) / float64(c.handled), float64(c.cpu.Microseconds()) / float64(c.handled)
}

// many measures consumers at the head of a log that grows steadily: those that
// share what the frontier reads, and those that read for themselves.
func many(ctx context.Context, l *lab) (rows []row, err error) {
	for _, d := range []dispatcher{notify, poll} {
		var one costs
		for i, n := range l.size.followers {
			apart, others, err := l.crowdedApart(ctx, d, n)
			if err != nil {
				return rows, fmt.Errorf("%s, %d consumers that read apart: %w", d.name, n, err)
			}
			shared, counted, err := l.crowded(ctx, d, n)
			if err != nil {
				return rows, fmt.Errorf("%s, %d consumers: %w", d.name, n, err)
			}
			if i == 0 {
				one = shared
			}
			rows = append(rows, row{
				part:     fmt.Sprintf("%s, consumers: %d, %s appends/s", d.name, n, grouped(shared.appends)),
				measured: shared.against(one, apart), counted: counted + others,
			})
		}
	}
	return rows, nil
}

// against compares costs with those of one consumer, and with those of as many
// that read apart.
func (c costs) against(one, apart costs) string {
	statements, cpu := c.each()
	oneStatements, oneCPU := one.each()
	apartStatements, apartCPU := apart.each()
	if err := errors.Join(c.cpuErr, one.cpuErr, apart.cpuErr); err != nil {
		return fmt.Sprintf("an event: %.2f statements, %.2f if each reads for itself; CPU: %v", statements, apartStatements, err)
	}
	return fmt.Sprintf("an event: %.2f statements, %.1f µs of database CPU (%.2f and %.2f of one consumer's); if each reads for itself: %.2f, %.1f µs",
		statements, cpu, statements/oneStatements, cpu/oneCPU, apartStatements, apartCPU)
}

func (l *lab) crowdedApart(ctx context.Context, d dispatcher, consumers int) (c costs, counted int, err error) {
	control.ReadApart.Store(true)
	defer control.ReadApart.Store(false)
	return l.crowded(ctx, d, consumers)
}

// crowded lets consumers of one worker follow a log that grows steadily.
func (l *lab) crowded(ctx context.Context, d dispatcher, consumers int) (c costs, counted int, err error) {
	err = l.onSite(ctx, func(s *site) error {
		s.wires = &wires{}
		j, all := newJournal(s, d.channel), newRecorders(consumers)
		err := s.work(ctx, 1, asConsumers(all), d.options(s), func(ctx context.Context) error {
			if err := errors.Join(warmUp(ctx, j, all...), j.connect(ctx, 8), j.settle(ctx, all...)); err != nil {
				return err
			}
			before, cpuErr := s.spent(ctx)
			began, first := time.Now(), j.count()
			statements := s.wires.statements.Load()
			n := int(appendRate * l.size.many.Seconds())
			err := paced(ctx, n, l.size.many, func(ctx context.Context, _ int) error { return j.append(ctx, true) })
			if err == nil {
				err = j.settle(ctx, all...)
			}
			if err != nil {
				return err
			}
			c.appends = float64(n) / time.Since(began).Seconds()
			c.handled = (j.count() - first) * consumers
			c.statements = s.wires.statements.Load() - statements
			after, err := s.spent(ctx)
			c.cpuErr = errors.Join(cpuErr, err)
			used := after.minus(before)
			c.cpu = used.all - used.writers
			return nil
		})
		if err == nil {
			counted, err = j.audit(ctx, all...)
		}
		return err
	})
	return c, counted, err
}
