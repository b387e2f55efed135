package oracle

import "fmt"

// rescued finds jobs of crashed workers that waited for too long. An outage of the
// server stops everything: the time counts from its end.
func (b *jobBooks) rescued() Finding {
	f := Finding{Name: "rescued", Rule: fmt.Sprintf("the jobs of a worker that crashed were given to others within %.1fs", b.RescueBound)}
	gone := map[string]float64{}
	for _, w := range b.Workers {
		gone[w.ID] = w.GoneAt
		f.check(true, nil)
	}
	for _, r := range b.Resets {
		at := gone[r.Worker]
		if at == 0 {
			continue
		}
		at = max(at, b.claimed(r.ID, r.Attempt))
		for _, o := range b.Outages {
			if o.From < r.At && at < o.To {
				at = min(o.To, r.At)
			}
		}
		f.check(r.At-at <= b.RescueBound, func() string {
			return fmt.Sprintf("%s, attempt %d, was given back at %.3fs, its worker %s was gone since %.3fs, and the server was well since %.3fs", b.name(r.ID), r.Attempt, r.At, b.who(r.Worker), gone[r.Worker], at)
		})
	}
	return f
}

// claimed is when an attempt of a job began.
func (b *jobBooks) claimed(id int64, attempt int) (at float64) {
	for _, s := range b.steps[id] {
		if s.State == "running" && s.Attempt == attempt {
			at = s.At
		}
	}
	return at
}
