package events

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
)

// reader is a part of the application that has just appended an event and reads it from a
// projection. It asks a worker to wait until a consumer has handled the event. It also checks
// whether the sessions of that worker's pool, which belongs to the application, are as they were
// opened.
type reader struct {
	*shared
	dice *rand.Rand

	kept, sound     int
	unkept, unsound []string
}

func newReader(s *shared, n int) *reader {
	return &reader{shared: s, dice: fault.Dice(s.scenario.Seed, fmt.Sprintf("reader %d", n))}
}

// run reads until intake ends.
func (r *reader) run(_, intake context.Context) error {
	for {
		e, ok := r.news.next(intake)
		if !ok {
			return nil
		}
		if n, c := r.choose(e); n != nil {
			r.read(intake, n, c, e, r.on.Bounds.Of(time.Second))
		}
	}
}

// choose draws a worker and a consumer that is to handle an event.
func (r *reader) choose(e history.Event) (n *node, consumer string) {
	var wanting []string
	for _, c := range r.scenario.Scope {
		if c.Wants(e.Type) {
			wanting = append(wanting, c.Name)
		}
	}
	if len(wanting) == 0 || len(r.places) == 0 {
		return nil, ""
	}
	return fault.OneOf(r.dice, r.places...).Current(), fault.OneOf(r.dice, wanting...)
}

// read waits until the worker says that the consumer has handled the event, and checks whether it
// has. The answer proves nothing in four cases. A crash of the server may have taken it back. An
// operator may have reset the consumer. A restored copy may lack the event. A handler may have
// committed the checkpoint itself, and it is not repaired yet.
func (r *reader) read(ctx context.Context, n *node, consumer string, e history.Event, bound time.Duration) {
	if n == nil {
		return
	}
	life := r.on.Life()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if n.worker.WaitFor(ctx, consumer, e.Position) != nil {
		return
	}
	var handled, excused bool
	err := r.on.DB.QueryRowContext(ctx, `
SELECT EXISTS (SELECT FROM sim_ledger WHERE consumer = $1::text AND position = $2::bigint),
	EXISTS (SELECT FROM consumer_operations WHERE split_part(consumer_name, '#', 1) = $1::text AND operation NOT IN ('pause', 'resume', 'split', 'merge', 'partition'))
	OR EXISTS (SELECT FROM sim_placed WHERE consumer = $1::text AND position >= $2::bigint)
	OR NOT EXISTS (SELECT FROM events WHERE event_id = $3::uuid)`,
		consumer, e.Position, e.EventID.String()).Scan(&handled, &excused)
	switch {
	case err != nil || server.Ending(life) || life != r.on.Life() || n.apart.Load() || r.broken.holds(consumer):
	case handled:
		r.kept++
	case !excused:
		r.unkept = append(r.unkept, fmt.Sprintf("%s: WaitFor said that %s had handled %v, and it had not", n.Name, consumer, e))
	}
	r.inspect(ctx, n)
}

// inspect reads one session of the worker's pool.
func (r *reader) inspect(ctx context.Context, n *node) {
	var left string
	err := n.DB.QueryRowContext(ctx, `SELECT coalesce(string_agg(name || ' = ' || setting, ', ' ORDER BY name), '') FROM pg_settings WHERE source = 'session'`).Scan(&left)
	switch {
	case err != nil:
	case left == "":
		r.sound++
	default:
		r.unsound = append(r.unsound, fmt.Sprintf("%s: a session in its pool was left with %s", n.Name, strings.TrimSpace(left)))
	}
}

// readLast reads the last event from each consumer, now that all is at rest.
func (r *reader) readLast(ctx context.Context, last history.Event) {
	for _, p := range r.places {
		for _, c := range r.scenario.Scope {
			if c.Wants(last.Type) {
				r.read(ctx, p.Current(), c.Name, last, r.on.Bounds.Of(server.WaitBound))
			}
		}
	}
}

// collect adds what the reader found to the evidence.
func (r *reader) collect(e *history.Evidence) {
	e.Kept += r.kept
	e.Sound += r.sound
	e.Unkept = append(e.Unkept, r.unkept...)
	e.Unsound = append(e.Unsound, r.unsound...)
}
