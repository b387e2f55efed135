package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pgfrontier/worker/internal/errtext"
)

// endedStep is a step of a run that has ended.
type endedStep struct {
	id     stepID
	name   string
	state  string
	mapped bool
	quorum int
	leaf   bool
	failed bool // or skipped because of a failed step
	good   bool // counts as completed for its dependents
	edges  []edgeEffect
}

// edgeEffect is the effect of the end of a step on a dependent.
type edgeEffect struct {
	N  int  `json:"n"`
	OK bool `json:"ok"`
}

// restart is how a step begins again.
type restart struct {
	ID      stepID `json:"id"`
	State   string `json:"state"`
	Need    int    `json:"need"`
	MayFail int    `json:"may_fail"`
	Blamed  bool   `json:"blamed"`
}

// resumption is the effect of a retry on a run.
type resumption struct {
	again  []restart
	forget []stepID // Map steps whose lists are read again
	bad    int      // number of ends that stay and make the run fail
}

// errNothingFailed refuses a retry without names if no failed step matters.
var errNothingFailed = errors.New("no step has failed that the run could not do without: name those to begin with")

// resume decides how a run that has ended continues from the steps named in from. Without names it
// continues from the steps whose failure made the run fail. For a cancelled run it continues from
// the cancelled steps. These steps begin again, and so do the steps that depend on them. The ends
// of the other steps stand. all is sorted by ID.
func resume(all []endedStep, cancelled bool, from []string) (p resumption, err error) {
	r := resumer{nodes: map[int]*endedStep{}, jobs: map[int][]*endedStep{}, again: map[stepID]bool{}, reread: map[int]bool{}, matter: map[int]bool{}}
	for i := range all {
		s := &all[i]
		if s.id.item() == 0 {
			r.nodes[s.id.n()] = s
		} else {
			r.jobs[s.id.n()] = append(r.jobs[s.id.n()], s)
		}
	}
	if err := r.begin(all, cancelled, from); err != nil {
		return p, err
	}
	for i := range all {
		s := &all[i]
		switch {
		case s.id.item() > 0 && r.reread[s.id.n()]:
			continue // the step is removed
		case !r.again[s.id]:
			if s.leaf && s.failed && !s.good {
				p.bad++
			}
			continue
		case r.reread[s.id.n()]:
			p.forget = append(p.forget, s.id)
		}
		p.again = append(p.again, r.restart(s))
	}
	return p, r.check(p.again, from)
}

// resumer finds the steps that begin again.
type resumer struct {
	nodes  map[int]*endedStep   // by place
	jobs   map[int][]*endedStep // jobs of Map steps, by the place of the step
	again  map[stepID]bool
	reread map[int]bool // steps of Map whose lists are read again
	matter map[int]bool // results of matters
}

// begin marks the steps to begin with, and the steps that depend on them.
func (r *resumer) begin(all []endedStep, cancelled bool, from []string) error {
	for _, name := range from {
		found := false
		for _, s := range r.nodes {
			if s.name == name {
				r.mark(s, true)
				found = true
			}
		}
		if !found {
			return fmt.Errorf("the run has no step %s, it has %s", errtext.Value(name), r.names())
		}
	}
	if len(from) > 0 {
		return nil
	}
	for i := range all {
		s := &all[i]
		node := r.nodes[s.id.n()]
		if !s.failed || !node.failed || s.state == "skipped" || r.byItsJobs(s) {
			continue
		}
		if cancelled && s.state == "cancelled" || r.matters(node) {
			r.mark(s, true)
		}
	}
	if len(r.again) == 0 {
		return errNothingFailed
	}
	return nil
}

// names returns the names of the run's steps.
func (r *resumer) names() string {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(r.nodes)) {
		names = append(names, r.nodes[n].name)
	}
	return listed(names)
}

// matters reports whether the failure of a step makes the run fail, or keeps another step from
// beginning. A failure does not matter if [Any], [Quorum], [Optional] or another way has made up
// for it.
func (r *resumer) matters(s *endedStep) (yes bool) {
	n := s.id.n()
	if known, is := r.matter[n]; is {
		return known
	}
	yes = s.leaf && !s.good
	for _, e := range s.edges {
		d := r.nodes[e.N]
		if d == nil || e.OK || !d.failed {
			continue
		}
		if (d.state == "skipped" || d.state == "cancelled") && r.matters(d) {
			yes = true
		}
	}
	r.matter[n] = yes
	return yes
}

// byItsJobs reports whether a Map step has failed because of its jobs. Then the failed jobs begin
// again.
func (r *resumer) byItsJobs(s *endedStep) bool {
	if !s.mapped || s.id.item() > 0 {
		return false
	}
	for _, j := range r.jobs[s.id.n()] {
		if j.failed {
			return true
		}
	}
	return false
}

// mark marks a step and the steps that depend on it. It skips dependents that have a good end
// without the step. If a Map step is reached from one of its jobs, its other jobs stay.
func (r *resumer) mark(s *endedStep, reread bool) {
	n := s.id.n()
	isNew := !r.again[s.id]
	r.again[s.id] = true
	if s.mapped && s.id.item() == 0 && reread {
		r.reread[n] = true
	}
	if !isNew {
		return
	}
	for _, e := range s.edges {
		if d := r.nodes[e.N]; d != nil && (e.OK || !d.good) {
			r.mark(d, s.id.item() == 0)
		}
	}
}

// restart counts the ends that stay. Every end of a step has come: an end that is not good is bad.
func (r *resumer) restart(s *endedStep) (a restart) {
	a.ID = s.id
	if s.id.item() > 0 {
		a.State = "enqueued"
		return a
	}
	n := s.id.n()
	befores := r.before(n)
	partly := s.mapped && !r.reread[n]
	if partly {
		befores = r.jobs[n]
	}
	a.Need = s.quorum
	if s.mapped && (!partly || s.quorum == 0) {
		a.Need = len(befores)
	}
	a.MayFail = len(befores) - a.Need
	for _, b := range befores {
		switch {
		case r.again[b.id]:
		case b.means(n):
			a.Need--
		default:
			a.MayFail--
			a.Blamed = a.Blamed || b.failed
		}
	}
	switch {
	case partly && a.Need <= 0:
		a.State = "completed"
	case partly:
		a.State = "spread"
	case a.Need <= 0 && s.mapped:
		a.State = "ready"
	case a.Need <= 0:
		a.State = "enqueued"
	case a.MayFail < 0 && (a.Blamed || a.Need+a.MayFail == 0):
		a.State = "skipped"
	default:
		a.State = "waiting"
	}
	return a
}

// before returns the steps that the step at n depends on.
func (r *resumer) before(n int) (all []*endedStep) {
	for _, s := range r.nodes {
		for _, e := range s.edges {
			if e.N == n {
				all = append(all, s)
			}
		}
	}
	return all
}

// means reports whether the end of a step is good for the step at n.
func (s *endedStep) means(n int) bool {
	for _, e := range s.edges {
		if e.N == n {
			return e.OK
		}
	}
	return false
}

// check refuses to begin with steps that would be skipped again.
func (r *resumer) check(again []restart, from []string) error {
	for _, a := range again {
		for _, name := range from {
			if a.MayFail < 0 && a.ID.item() == 0 && r.nodes[a.ID.n()].name == name {
				return fmt.Errorf("step %s would be skipped again, for what it depends on has not ended well: begin with that", errtext.Value(name))
			}
		}
	}
	return nil
}

func parseEdges(text string) (edges []edgeEffect, err error) {
	return edges, json.Unmarshal([]byte(text), &edges)
}
