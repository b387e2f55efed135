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

// condition is the end of a step that another step waits for.
type condition string

const (
	onSuccess condition = "success"
	onFailure condition = "failure"
	onEnd     condition = "end"
)

// definition is a flow as a program has declared it. A step can depend only on steps that were
// added before, so there are no cycles.
type definition struct {
	name  string
	nodes []node
	errs  []error
}

// node is a step of a definition.
type node struct {
	name     string
	kind     string
	list     int // for a Map step: the step whose result is the list; else -1
	quorum   int // how many good ends suffice; 0: all
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

// validate returns an error that lists every problem.
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

// shape is a flow in the form in which its runs are started. Its JSON is sent to the database.
type shape struct {
	Steps   []step
	version string
	record  string // JSON without the parts that differ between runs
}

// step is a step of a shape. Need and MayFail are counters. Need is how many good ends the step
// still waits for. MayFail is how many ends may still be bad. The step is enqueued when Need is 0.
// It is skipped when too many ends were bad.
type step struct {
	N          int          `json:"n"`
	Name       string       `json:"name"`
	Need       int          `json:"need"`
	MayFail    int          `json:"may_fail"`
	Quorum     int          `json:"quorum"` // initial value of Need; for Map: of its jobs, 0 is all
	Leaf       bool         `json:"leaf"`
	Optional   bool         `json:"optional"`
	List       *int         `json:"list,omitempty"` // nil: no Map step
	Dependents []edge       `json:"dependents"`
	Job        queue.NewJob `json:"spec"`
}

// edge names a dependent of a step, and the condition.
type edge struct {
	N    int             `json:"n"`
	On   condition       `json:"on"`
	When json.RawMessage `json:"when,omitempty"`
}

// compile builds the shape. The definition must be valid.
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
			// A step with OnFailure or OnEnd does not decide whether its dependency is a leaf.
			before.Leaf = before.Leaf && a.on != onSuccess
		}
	}
	text, _ := json.Marshal(s.Steps)
	sum := sha256.Sum256(text)
	s.version, s.record = hex.EncodeToString(sum[:6]), string(text)
	return s
}

// stepID is the ID of a step of a run. It has three parts. The first is the ID of the run. The
// second is the place of the step in the flow. For a job of a Map step, the third is its place in
// the list, from 1. So all steps of a run are a range of the table's key, and the IDs of dependents
// can be computed.
type stepID int64

const (
	itemBits = 20 // a list is the result of a job, one megabyte at most
	stepBits = 10
	runShift = itemBits + stepBits
)

func idOf(run int64, n, item int) stepID {
	return stepID(run<<runShift | int64(n)<<itemBits | int64(item))
}

func (id stepID) run() int64 { return int64(id >> runShift) }
func (id stepID) n() int     { return int(id >> itemBits & (1<<stepBits - 1)) }
func (id stepID) item() int  { return int(id & (1<<itemBits - 1)) }

// lastItem returns the ID of the last step that the list of a step can have.
func (id stepID) lastItem() int64 { return int64(id | (1<<itemBits - 1)) }
