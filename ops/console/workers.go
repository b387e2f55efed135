package console

import (
	"context"

	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/ops"
)

// gone is a worker that stopped.
type gone struct {
	ops.StoppedWorker
	Words string // how
}

// goneOf says how workers stopped. name names a worker.
func goneOf(all []ops.StoppedWorker, name func(id [16]byte) string) (rows []gone) {
	for _, w := range all {
		words := w.How
		switch w.How {
		case "stopped":
			words = "✓ stopped by its program"
		case "drained":
			words = "✓ drained"
		case "failed":
			words = "✕ failed, see its log"
		case "dead":
			words = "✕ declared dead by " + name(w.DeclaredBy)
		}
		rows = append(rows, gone{w, words})
	}
	return rows
}

// jobWorkersPage are the workers of jobs.
type jobWorkersPage struct {
	Workers []ops.Worker
	Stopped []ops.StoppedWorker
}

// Silent reports whether the worker's heartbeat is old.
func (jobWorkersPage) Silent(w ops.Worker) bool { return alarms.IsSilent(w) }

// Troubles are the errors of a worker, one a line.
func (jobWorkersPage) Troubles(w ops.Worker) (all []string) {
	for _, c := range alarms.JobWorkerErrors(w.Status) {
		all = append(all, c.Part+": "+c.Text)
	}
	return append(all, alarms.LostSlots(w.Status)...)
}

// Gone are the rows of the workers that stopped.
func (p jobWorkersPage) Gone() []gone {
	return goneOf(p.Stopped, func(id [16]byte) string {
		for _, w := range p.Workers {
			if w.ID == id {
				return placeOf(w)
			}
		}
		return shortID(id) + ", gone"
	})
}

func (r *jobReads) jobWorkers(ctx context.Context, _ query, _ Grant) (any, error) {
	var p jobWorkersPage
	var err error
	if p.Workers, err = r.jobs.Workers(ctx); err != nil {
		return nil, err
	}
	p.Stopped, err = stoppedOf(r.jobs.StoppedWorkers(ctx))
	return p, err
}

// Drainable are the workers that the reader may ask to drain.
func (p *page) Drainable(on string, all []ops.Worker) (some []ops.Worker) {
	for _, w := range all {
		if w.DrainRequested.IsZero() && p.May(on, string(ops.KindDrain), w.ID.String()) {
			some = append(some, w)
		}
	}
	return some
}
