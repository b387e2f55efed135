package flow

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/jobs"
)

const (
	maxName         = 200  // bytes
	maxSteps        = 1000 // of a flow
	maxDependencies = 10_000
)

// condition is which end of a step another one waits for.
type condition string

const (
	onSuccess condition = "success"
	onFailure condition = "failure"
	onEnd     condition = "end"
)

// definition is a flow as a program has declared it. A step can only depend on those
// that were added before, so there are no circles.
type definition struct {
	name  string
	nodes []node
	errs  []error
}

// node is a step of a definition.
type node struct {
	name     string
	kind     string
	list     int // the step whose result a step of Map is over; -1: it is none
	quorum   int // good ends that are enough; 0: all
	optional bool
	after    []dependency
	enqueue  []jobs.EnqueueOption
}

type dependency struct {
	n    int
	on   condition
	when json.RawMessage // nil: always
}

func (d *definition) fail(format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf(format, args...))
}

// add adds a step, and returns its place and the options of its job.
func (d *definition) add(name, kind string, list int, opts []StepOption) (n int, options []jobs.EnqueueOption) {
	d.check("a step", name)
	if len(d.nodes) == maxSteps {
		d.fail("step %s is one too many: a flow has %d at most", errtext.Value(name), maxSteps)
		return -1, nil
	}
	s := node{name: name, kind: kind, list: list}
	for _, o := range opts {
		if o != nil {
			o(d, &s)
		}
	}
	d.nodes = append(d.nodes, s)
	return len(d.nodes) - 1, s.enqueue
}

// validate returns all that is wrong.
func (d *definition) validate() error {
	all := append([]error{}, d.errs...)
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if len(d.nodes) == 0 {
		fail("there are no steps: add some with Add")
	}
	names, edges := map[string]bool{}, 0
	for _, s := range d.nodes {
		if names[s.name] {
			fail("two steps are called %s", errtext.Value(s.name))
		}
		names[s.name] = true
		edges += len(s.after)
		seen := map[int]bool{}
		for _, a := range s.after {
			before := d.nodes[a.n]
			if seen[a.n] {
				fail("step %s depends on step %s twice", errtext.Value(s.name), errtext.Value(before.name))
			}
			seen[a.n] = true
		}
		if s.list < 0 && s.quorum > len(s.after) {
			fail("step %s: a quorum of %d of the %d steps that it depends on", errtext.Value(s.name), s.quorum, len(s.after))
		}
	}
	if edges > maxDependencies {
		fail("%d dependencies are too many, a flow has %d at most", edges, maxDependencies)
	}
	return errtext.Join(all...)
}

// shape is a flow as its runs are started. Its JSON is what the database is given.
type shape struct {
	Steps   []step
	version string
	record  string // JSON, without what differs from run to run
}

// step is a step of a shape. Need and MayFail are counters: of the ends that it waits
// for, so many must still be good, and so many may still be bad. It is enqueued when
// nothing is needed any more, and skipped when too many were bad.
type step struct {
	N          int          `json:"n"`
	Name       string       `json:"name"`
	Need       int          `json:"need"`
	MayFail    int          `json:"may_fail"`
	Quorum     int          `json:"quorum"` // what Need is at first; of Map: of the jobs, 0 is all
	Leaf       bool         `json:"leaf"`
	Optional   bool         `json:"optional"`
	List       *int         `json:"list,omitempty"` // nil: it is not of Map
	Dependents []edge       `json:"dependents"`
	Job        queue.NewJob `json:"spec"`
}

// edge tells a dependent of the end of a step.
type edge struct {
	N    int             `json:"n"`
	On   condition       `json:"on"`
	When json.RawMessage `json:"when,omitempty"`
}

// compile lays out the steps. The definition must be valid.
func (d *definition) compile() (s shape) {
	s.Steps = make([]step, len(d.nodes))
	for n, node := range d.nodes {
		e := &s.Steps[n]
		*e = step{N: n, Name: node.name, Need: len(node.after), Quorum: node.quorum, Leaf: true, Optional: node.optional,
			Dependents: []edge{}, Job: queue.NewJob{Kind: node.kind}}
		if node.list >= 0 {
			e.List = &node.list
		} else {
			if node.quorum > 0 {
				e.Need, e.MayFail = node.quorum, len(node.after)-node.quorum
			}
			e.Quorum = e.Need
		}
		for _, a := range node.after {
			before := &s.Steps[a.n]
			before.Dependents = append(before.Dependents, edge{n, a.on, a.when})
			// What makes up for a step, or cleans up after it, does not speak for it.
			before.Leaf = before.Leaf && a.on != onSuccess
		}
	}
	text, _ := json.Marshal(s.Steps)
	sum := sha256.Sum256(text)
	s.version, s.record = hex.EncodeToString(sum[:6]), string(text)
	return s
}

// stepID names a step of a run: the run, the place of the step in the flow, and of one
// of Map the place of a job in the list, from 1. So all steps of a run are a range of
// the table's key, and a step knows the ids of its dependents.
type stepID int64

const (
	itemBits = 20 // a list is the result of a job, a megabyte at most
	stepBits = 10
	runShift = itemBits + stepBits
)

func idOf(run int64, n, item int) stepID {
	return stepID(run<<runShift | int64(n)<<itemBits | int64(item))
}

func (id stepID) run() int64 { return int64(id >> runShift) }
func (id stepID) n() int     { return int(id >> itemBits & (1<<stepBits - 1)) }
func (id stepID) item() int  { return int(id & (1<<itemBits - 1)) }

// lastItem is the last step that the list of a step can have.
func (id stepID) lastItem() int64 { return int64(id | (1<<itemBits - 1)) }
