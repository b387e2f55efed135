package flow

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
)

// The model has no counters. For each step, in the order of the flow, it reads how the dependencies
// have ended. Its result does not depend on the order of ends.

// outcome is the end of a step's job, if the step has a job.
type outcome struct {
	state  string // completed, failed, cancelled, skipped by its handler
	result string // JSON
}

// end is the end of a step.
type end struct {
	state  string
	failed bool
	good   bool
	result string
}

// drawn is a flow with the outcomes of its jobs.
type drawn struct {
	def   definition
	jobs  map[stepID]outcome // of run 0; a Map step's jobs follow their step
	lists map[int]int        // lengths of lists, by the steps that make them
}

// drawFlow draws a flow with a bounded number of steps, each after some of the earlier steps.
func drawFlow(t *rapid.T, most int) drawn {
	d := drawn{def: definition{name: "drawn"}, jobs: map[stepID]outcome{}, lists: map[int]int{}}
	n := rapid.IntRange(1, most).Draw(t, "steps")
	for i := range n {
		s := node{name: fmt.Sprint("s", i), kind: "k", list: -1, optional: rapid.IntRange(0, 6).Draw(t, "optional") == 0}
		for b := range i {
			if rapid.IntRange(0, 9).Draw(t, "after") >= 4 {
				continue
			}
			dep := dependency{n: b, on: rapid.SampledFrom([]condition{onSuccess, onSuccess, onSuccess, onFailure, onEnd}).Draw(t, "on")}
			mapped := d.def.nodes[b].list >= 0
			if dep.on == onSuccess && !mapped && rapid.IntRange(0, 4).Draw(t, "if") == 0 {
				dep.when = json.RawMessage(`{"risk": 1}`)
			}
			if dep.on == onSuccess && dep.when == nil && !mapped && s.list < 0 && rapid.IntRange(0, 3).Draw(t, "map") == 0 {
				s.list = b
				if _, made := d.lists[b]; !made {
					d.lists[b] = rapid.IntRange(0, 4).Draw(t, "list")
				}
			}
			s.after = append(s.after, dep)
		}
		switch {
		case s.list >= 0:
			s.quorum = rapid.IntRange(0, 3).Draw(t, "quorum of jobs")
		case len(s.after) > 0 && rapid.Bool().Draw(t, "has a quorum"):
			s.quorum = rapid.IntRange(1, len(s.after)).Draw(t, "quorum")
		}
		d.def.nodes = append(d.def.nodes, s)
	}
	for i, s := range d.def.nodes {
		if s.list < 0 {
			d.jobs[idOf(0, i, 0)] = drawOutcome(t, d.lists, i)
			continue
		}
		for k := range d.lists[s.list] {
			d.jobs[idOf(0, i, k+1)] = drawOutcome(t, nil, i)
		}
	}
	return d
}

func drawOutcome(t *rapid.T, lists map[int]int, n int) outcome {
	o := outcome{state: rapid.SampledFrom([]string{"completed", "completed", "completed", "failed", "cancelled", "skipped"}).Draw(t, "outcome")}
	if o.state != "completed" {
		return o
	}
	o.result = rapid.SampledFrom([]string{`{"risk": 1, "more": 2}`, `{"risk": 2}`, `null`}).Draw(t, "result")
	if length, ok := lists[n]; ok {
		list := make([]map[string]int, length)
		text, _ := json.Marshal(list)
		o.result = string(text)
	}
	return o
}

// endOf returns the end of a step whose job ends with o.
func endOf(o outcome, optional bool) end {
	failed := o.state == "failed" || o.state == "cancelled"
	return end{o.state, failed, o.state == "completed" || o.state == "skipped" || failed && optional, o.result}
}

// evaluate returns the ends of all steps. The steps in kept have ended already.
func (d drawn) evaluate(kept map[stepID]end) (all map[stepID]end, state string) {
	all = map[stepID]end{}
	run := jobs.StateCompleted
	for n := range d.def.nodes {
		id := idOf(0, n, 0)
		e, is := kept[id]
		if !is {
			e = d.end(n, all, kept)
		} else {
			for k, e := range kept {
				if k.n() == n && k.item() > 0 {
					all[k] = e
				}
			}
		}
		all[id] = e
		leaf := !slices.ContainsFunc(d.def.nodes, func(o node) bool {
			return slices.ContainsFunc(o.after, func(a dependency) bool { return a.n == n && a.on == onSuccess })
		})
		if leaf && e.failed && !e.good {
			run = jobs.StateFailed
		}
	}
	return all, string(run)
}

func (d drawn) end(n int, all, kept map[stepID]end) end {
	s := d.def.nodes[n]
	good, blamed := 0, false
	for _, a := range s.after {
		b := all[idOf(0, a.n, 0)]
		ok := false
		switch a.on {
		case onEnd:
			ok = true
		case onFailure:
			ok = b.failed
		default:
			ok = b.good && (a.when == nil || b.result == `{"risk": 1, "more": 2}`)
		}
		if ok {
			good++
		} else {
			blamed = blamed || b.failed
		}
	}
	need := len(s.after)
	if s.quorum > 0 && s.list < 0 {
		need = s.quorum
	}
	if good < need {
		return end{state: "skipped", failed: blamed}
	}
	if s.list < 0 {
		return endOf(d.jobs[idOf(0, n, 0)], s.optional)
	}
	list := all[idOf(0, s.list, 0)]
	length := 0
	if list.state == "completed" {
		length = d.lists[s.list]
	}
	if length < s.quorum {
		return end{"failed", true, s.optional, ""} // no job begins
	}
	good = 0
	for k := range length {
		id := idOf(0, n, k+1)
		e, is := kept[id]
		if !is {
			e = endOf(d.jobs[id], false)
		}
		if all[id] = e; e.good {
			good++
		}
	}
	need = length
	if s.quorum > 0 {
		need = s.quorum
	}
	if good < need {
		return end{"failed", true, s.optional, ""}
	}
	return end{state: "completed", good: true}
}

// machine runs the counters of the shape in memory, one end after the other, as the statements do.
type machine struct {
	d     drawn
	steps map[int]*step
	state map[stepID]string
	need  map[stepID]int
	may   map[stepID]int
	blame map[stepID]bool
	all   map[stepID]end
	jobs  []stepID // enqueued steps
}

func newMachine(d drawn) *machine {
	m := &machine{d: d, steps: map[int]*step{}, state: map[stepID]string{}, need: map[stepID]int{}, may: map[stepID]int{}, blame: map[stepID]bool{}, all: map[stepID]end{}}
	shape := d.def.compile()
	for i := range shape.Steps {
		s := &shape.Steps[i]
		id := idOf(0, s.N, 0)
		m.steps[s.N], m.state[id], m.need[id], m.may[id] = s, "waiting", s.Need, s.MayFail
		if s.Need == 0 {
			m.enqueue(id)
		}
	}
	return m
}

func (m *machine) enqueue(id stepID) {
	m.state[id] = "enqueued"
	m.jobs = append(m.jobs, id)
}

func (m *machine) ended(id stepID, e end) {
	m.state[id], m.all[id] = e.state, e
	if id.item() > 0 {
		m.report(idOf(0, id.n(), 0), e.good, e.failed)
		return
	}
	for _, d := range m.steps[id.n()].Dependents {
		ok := true
		switch d.On {
		case onFailure:
			ok = e.failed
		case onSuccess:
			ok = e.good && (d.When == nil || e.result == `{"risk": 1, "more": 2}`)
		}
		m.report(idOf(0, d.N, 0), ok, e.failed)
	}
}

func (m *machine) report(id stepID, ok, blamed bool) {
	if m.state[id] != "waiting" && m.state[id] != "spread" {
		return
	}
	if ok {
		m.need[id]--
	} else {
		m.may[id]--
		m.blame[id] = m.blame[id] || blamed
	}
	m.settle(id)
}

func (m *machine) settle(id stepID) {
	s := m.steps[id.n()]
	spread := m.state[id] == "spread"
	switch {
	case m.need[id] <= 0 && spread:
		m.ended(id, end{state: "completed", good: true})
	case m.need[id] <= 0 && s.List != nil:
		m.spread(id, s)
	case m.need[id] <= 0:
		m.enqueue(id)
	case m.may[id] < 0 && spread:
		m.ended(id, end{"failed", true, s.Optional, ""})
	case m.may[id] < 0 && (m.blame[id] || m.need[id]+m.may[id] == 0):
		m.ended(id, end{state: "skipped", failed: m.blame[id]})
	}
}

func (m *machine) spread(id stepID, s *step) {
	length := 0
	if m.all[idOf(0, *s.List, 0)].state == "completed" {
		length = m.d.lists[*s.List]
	}
	switch {
	case length < s.Quorum:
		m.ended(id, end{"failed", true, s.Optional, ""})
		return
	case length == 0:
		m.ended(id, end{state: "completed", good: true})
		return
	}
	m.state[id], m.need[id], m.may[id] = "spread", length, 0
	if s.Quorum > 0 {
		m.need[id], m.may[id] = s.Quorum, length-s.Quorum
	}
	for k := range length {
		m.enqueue(idOf(0, id.n(), k+1))
	}
}

// play ends the jobs in a drawn order.
func (m *machine) play(t *rapid.T) {
	for len(m.jobs) > 0 {
		i := rapid.IntRange(0, len(m.jobs)-1).Draw(t, "next")
		id := m.jobs[i]
		m.jobs = slices.Delete(m.jobs, i, i+1)
		m.ended(id, endOf(m.d.jobs[id], id.item() == 0 && m.steps[id.n()].Optional))
	}
}

func sameEnds(t interface{ Errorf(string, ...any) }, got, want map[stepID]end) {
	for _, id := range slices.Sorted(maps.Keys(want)) {
		g, w := got[id], want[id]
		g.result, w.result = "", ""
		if g != w {
			t.Errorf("step %d, job %d: %+v, want %+v", id.n(), id.item(), g, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d steps have ended, want %d", len(got), len(want))
	}
}

// The counters reach the result of the model in any order of ends.
//
//	go test -run TestCountersAgreeWithModel ./jobs/flow -rapid.checks=100000
func TestCountersAgreeWithModel(t *testing.T) {
	tier.Checks(t, 5_000, 100_000)
	rapid.Check(t, func(t *rapid.T) {
		d := drawFlow(t, 8)
		if err := d.def.validate(); err != nil {
			t.Fatal(err)
		}
		m := newMachine(d)
		m.play(t)
		want, _ := d.evaluate(nil)
		sameEnds(t, m.all, want)
	})
}

// endedSteps returns the steps in the form in which a retry reads them.
func (m *machine) endedSteps() (all []endedStep) {
	for _, id := range slices.Sorted(maps.Keys(m.all)) {
		e, s := m.all[id], m.steps[id.n()]
		one := endedStep{id: id, name: s.Name, state: e.state, failed: e.failed, good: e.good}
		if id.item() > 0 {
			one.edges = []edgeEffect{{id.n(), e.good}}
		} else {
			one.mapped, one.quorum, one.leaf = s.List != nil, s.Quorum, s.Leaf
			for _, d := range s.Dependents {
				ok := d.On == onEnd || d.On == onFailure && e.failed || d.On == onSuccess && e.good && (d.When == nil || e.result == `{"risk": 1, "more": 2}`)
				one.edges = append(one.edges, edgeEffect{d.N, ok})
			}
		}
		all = append(all, one)
	}
	return all
}

// A retry begins with the requested steps, and keeps no end that depends on them. The run ends as a
// run would in which the other ends had been the same from the beginning.
//
//	go test -run TestResumeAgreesWithModel ./jobs/flow -rapid.checks=100000
func TestResumeAgreesWithModel(t *testing.T) {
	tier.Checks(t, 5_000, 100_000)
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(drawFlow(t, 8))
		m.play(t)
		var from []string
		for _, s := range m.d.def.nodes {
			if rapid.IntRange(0, 4).Draw(t, "from") == 0 {
				from = append(from, s.name)
			}
		}
		ended := m.endedSteps()
		plan, err := resume(ended, false, from)
		if err != nil {
			return // TestRetry covers refused retries
		}
		again := map[stepID]bool{}
		for _, a := range plan.again {
			again[a.ID] = true
		}
		for _, s := range ended {
			for _, e := range s.edges {
				if d := idOf(0, e.N, 0); again[s.id] && !again[d] && (e.OK || !m.all[d].good) {
					t.Errorf("step %d begins again, and the end of step %d stays", s.id.n(), e.N)
				}
			}
		}
		kept := maps.Clone(m.all)
		for _, id := range plan.forget {
			maps.DeleteFunc(kept, func(k stepID, _ end) bool { return k.n() == id.n() })
		}
		for _, a := range plan.again {
			delete(kept, a.ID)
		}
		// The second time, jobs may end differently.
		for _, id := range slices.Sorted(maps.Keys(m.d.jobs)) {
			if _, makes := m.d.lists[id.n()]; rapid.Bool().Draw(t, "otherwise") && !makes {
				m.d.jobs[id] = drawOutcome(t, nil, -1)
			}
		}
		m.apply(plan, kept)
		m.play(t)
		want, run := m.d.evaluate(kept)
		sameEnds(t, m.all, want)
		bad := plan.bad
		for _, a := range plan.again {
			if e := m.all[a.ID]; a.ID.item() == 0 && m.steps[a.ID.n()].Leaf && e.failed && !e.good {
				bad++
			}
		}
		if (bad == 0) != (run == string(jobs.StateCompleted)) {
			t.Errorf("%d bad ends are counted, and the run has %s", bad, run)
		}
		for _, name := range from {
			if !slices.ContainsFunc(plan.again, func(a restart) bool { return m.steps[a.ID.n()].Name == name && a.ID.item() == 0 }) {
				t.Errorf("step %s does not begin again", name)
			}
		}
	})
}

// A failed run can be retried without names, a completed run cannot.
func TestResumeNeedsNamesIfTheRunHasCompleted(t *testing.T) {
	tier.Checks(t, 5_000, 100_000)
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(drawFlow(t, 8))
		m.play(t)
		_, state := m.d.evaluate(nil)
		if _, err := resume(m.endedSteps(), false, nil); (err == nil) != (state == string(jobs.StateFailed)) {
			t.Errorf("the run has %s, and a retry of it says %v", state, err)
		}
	})
}

// apply changes the machine as a retry changes the tables.
func (m *machine) apply(plan resumption, kept map[stepID]end) {
	m.all = maps.Clone(kept)
	for _, a := range plan.again {
		m.state[a.ID], m.need[a.ID], m.may[a.ID], m.blame[a.ID] = a.State, a.Need, a.MayFail, a.Blamed
	}
	for _, a := range plan.again {
		switch a.State {
		case "enqueued":
			m.jobs = append(m.jobs, a.ID)
		case "ready":
			m.spread(a.ID, m.steps[a.ID.n()])
		case "skipped":
			m.ended(a.ID, end{state: "skipped", failed: a.Blamed})
		case "completed":
			m.ended(a.ID, end{state: "completed", good: true})
		}
	}
}

// shuffled returns a list in random order.
func shuffled[T any](all []T) []T {
	all = slices.Clone(all)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}
