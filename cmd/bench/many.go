package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// appendRate is how many appends a second there are.
const appendRate = 1_000

// writersName is the application_name of the sessions of a site's own pool.
const writersName = "bench writers"

// readings counts the statements that read events.
type readings struct{ n atomic.Int64 }

func (r *readings) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "payload") && strings.Contains(q.SQL, "SELECT") && !strings.Contains(q.SQL, "INSERT") {
		r.n.Add(1)
	}
	return ctx
}

func (r *readings) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// costs is what consumers at the head of the log cost.
type costs struct {
	handled    int // deliveries
	appends    float64
	cpu        time.Duration // of the server, without the writers'
	cpuErr     error         // why it is not known
	statements int64
	reads      int64
	read       time.Duration // CPU of one of them
}

// many measures consumers at the head of a log that grows steadily.
func many(ctx context.Context, l *lab) (rows []row, err error) {
	for _, d := range []dispatcher{notify, poll} {
		var one costs
		for i, n := range l.size.followers {
			c, counted, err := l.crowded(ctx, d, n)
			if err != nil {
				return rows, fmt.Errorf("%s, %d consumers: %w", d.name, n, err)
			}
			if i == 0 {
				one = c
			}
			rows = append(rows, c.row(d, n, one, counted))
		}
	}
	return rows, nil
}

func (c costs) row(d dispatcher, n int, one costs, counted int) row {
	r := row{part: fmt.Sprintf("%s, consumers: %d, %s appends/s", d.name, n, grouped(c.appends)), counted: counted}
	each := func(c costs) (cpu, statements float64) {
		return float64(c.cpu.Microseconds()) / float64(c.handled), float64(c.statements) / float64(c.handled)
	}
	cpu, statements := each(c)
	r.measured = fmt.Sprintf("an event: %.2f statements", statements)
	if c.cpuErr != nil {
		r.measured += "; CPU: " + c.cpuErr.Error()
		return r
	}
	r.measured += fmt.Sprintf(", %.0f µs of database CPU", cpu)
	if n == 1 {
		return r
	}
	oneCPU, oneStatements := each(one)
	again := float64(c.reads) * float64(n-1) / float64(n) * float64(c.read)
	r.measured += fmt.Sprintf(" (%.2f and %.2f of one consumer's); reading again is %.0f%% of the CPU", statements/oneStatements, cpu/oneCPU, 100*again/float64(c.cpu))
	return r
}

// crowded lets consumers of one worker follow a log that grows steadily.
func (l *lab) crowded(ctx context.Context, d dispatcher, consumers int) (c costs, counted int, err error) {
	err = l.onSite(ctx, func(s *site) error {
		reads := &readings{}
		s.wires, s.tracer, s.keep = &wires{}, reads, consumers+8
		j, all := newJournal(s, d.channel), newRecorders(consumers)
		err := s.work(ctx, 1, asConsumers(all), d.options(s), func(ctx context.Context) error {
			if err := errors.Join(warmUp(ctx, j, all...), j.connect(ctx, 8), j.settle(ctx, all...)); err != nil {
				return err
			}
			before, cpuErr := s.spent(ctx)
			began, first := time.Now(), j.count()
			statements, read := s.wires.statements.Load(), reads.n.Load()
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
			c.statements, c.reads = s.wires.statements.Load()-statements, reads.n.Load()-read
			after, err := s.spent(ctx)
			c.cpuErr = errors.Join(cpuErr, err)
			used := after.minus(before)
			c.cpu = used.all - used.writers
			return nil
		})
		if err == nil && c.cpuErr == nil {
			c.read, err = s.costOfReading(ctx, max(1, c.handled/int(max(c.reads, 1))))
		}
		if err == nil {
			counted, err = j.audit(ctx, all...)
		}
		return err
	})
	return c, counted, err
}

// costOfReading returns the CPU time that it takes to read so many events at
// the head, as consumers do.
func (s *site) costOfReading(ctx context.Context, events int) (each time.Duration, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	var head int64
	if err := conn.QueryRowContext(ctx, `SELECT max(global_position) FROM events`).Scan(&head); err != nil {
		return 0, err
	}
	before, err := s.spent(ctx)
	if err != nil {
		return 0, err
	}
	began, n := time.Now(), 0
	for ; n == 0 || time.Since(began) < s.lab.size.many/5; n++ {
		if _, err := readWindow(ctx, conn, head-int64(events), events, nil); err != nil {
			return 0, err
		}
	}
	after, err := s.spent(ctx)
	return after.minus(before).writers / time.Duration(n), err
}
