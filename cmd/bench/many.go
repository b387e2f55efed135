package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pgfrontier/worker/internal/lab/mutants"
)

// costs is what consumers at the head of the log cost.
type costs struct {
	Handled    int // deliveries
	Appends    float64
	CPU        time.Duration // of the server, without the writers'
	CPUUnknown string        // why it is not known
	Statements int64
	Counted    int // deliveries that were right
}

// each is what one delivery costs, the CPU time in microseconds.
func (c costs) each() (statements, cpu float64) {
	return float64(c.Statements) / float64(c.Handled), float64(c.CPU.Microseconds()) / float64(c.Handled)
}

// many measures consumers at the head of a log that grows steadily: those that
// share what the frontier reads, and those that read for themselves, in a
// program built for that.
func many(ctx context.Context, l *lab) (rows []row, err error) {
	program, err := l.apartProgram(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range []dispatcher{notify, poll} {
		var one costs
		for i, n := range l.size.followers {
			apart, err := l.follow(ctx, d, n, program)
			if err != nil {
				return rows, fmt.Errorf("%s, %d consumers that read apart: %w", d.name, n, err)
			}
			shared, err := l.follow(ctx, d, n, "")
			if err != nil {
				return rows, fmt.Errorf("%s, %d consumers: %w", d.name, n, err)
			}
			if i == 0 {
				one = shared
			}
			rows = append(rows, row{
				part:     fmt.Sprintf("%s, consumers: %d, %s appends/s", d.name, n, grouped(shared.Appends)),
				measured: shared.against(one, apart), counted: shared.Counted + apart.Counted,
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
	if c.CPUUnknown != "" {
		return fmt.Sprintf("an event: %.2f statements, %.2f if each reads for itself; CPU: %s", statements, apartStatements, c.CPUUnknown)
	}
	return fmt.Sprintf("an event: %.2f statements, %.1f µs of database CPU (%.2f and %.2f of one consumer's); if each reads for itself: %.2f, %.1f µs",
		statements, cpu, statements/oneStatements, cpu/oneCPU, apartStatements, apartCPU)
}

// apartProgram builds this command so that consumers read apart.
func (l *lab) apartProgram(ctx context.Context) (string, error) {
	root, err := mutants.Root(ctx)
	if err != nil {
		return "", err
	}
	if l.apart, err = os.MkdirTemp("", "bench-"); err != nil {
		return "", err
	}
	return mutants.Apart.Build(ctx, root, l.apart, "./cmd/bench")
}

// follow measures in a process of its own. An empty program is this one.
func (l *lab) follow(ctx context.Context, d dispatcher, consumers int, program string) (c costs, err error) {
	err = l.onSite(ctx, func(s *site) (err error) {
		c, err = ask[costs](ctx, s, role{
			program: program, Task: "many", Name: "many", Notify: d.name == notify.name,
			Consumers: consumers, Period: l.size.many, Postmaster: s.postmaster,
		})
		return err
	})
	return c, err
}

// manyTask lets consumers of one worker follow a log that grows steadily.
func manyTask(ctx context.Context, r role) (found any, err error) {
	s := &site{url: r.URL, postmaster: r.Postmaster, wires: &wires{}}
	if err := s.open(); err != nil {
		return nil, err
	}
	defer s.db.Close()
	d := r.dispatcher()
	j, all := newJournal(s, d.channel), newRecorders(r.Consumers)
	var c costs
	err = s.work(ctx, 1, asConsumers(all), d.options(s), func(ctx context.Context) error {
		if err := errors.Join(warmUp(ctx, j, all...), j.connect(ctx, 8), j.settle(ctx, all...)); err != nil {
			return err
		}
		before, cpuErr := s.spent(ctx)
		began, first := time.Now(), j.count()
		statements := s.wires.statements.Load()
		err := j.appendFor(ctx, r.Period)
		if err == nil {
			err = j.settle(ctx, all...)
		}
		if err != nil {
			return err
		}
		c.Appends = appendRate * r.Period.Seconds() / time.Since(began).Seconds()
		c.Handled = (j.count() - first) * r.Consumers
		c.Statements = s.wires.statements.Load() - statements
		after, err := s.spent(ctx)
		if err := errors.Join(cpuErr, err); err != nil {
			c.CPUUnknown = err.Error()
		}
		used := after.minus(before)
		c.CPU = used.all - used.writers
		return nil
	})
	if err == nil {
		c.Counted, err = j.audit(ctx, all...)
	}
	return c, err
}
