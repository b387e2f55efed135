package ops

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/manifest"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
)

// Planned is what a build would change for a consumer.
type Planned struct {
	Consumer string
	Changes  bool     // false: Says is only for information
	Says     []string // lines; empty: nothing is to be said
}

// Plan compares a build with the deployment, before the build runs. build is the result of
// worker.Describe. Plan returns the build's consumers, then those for which the build has no code,
// both in order of name. It describes the deployment after the build has replaced the others. Plan
// takes no lock and writes nothing.
//
// A consumer that has another name in the build is a new one, unless [Operator.Rename] renames it
// before. Plan does not know how a handler has changed.
func (o *Operator) Plan(ctx context.Context, build []byte) ([]Planned, error) {
	declared, err := manifest.Parse(build)
	if err != nil {
		return nil, o.fail("plan a build", fmt.Errorf("%w: the build's consumers: %w", ErrInvalid, err))
	}
	workers, err := o.Workers(ctx)
	if err != nil {
		return nil, err
	}
	consumers, err := o.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	return plan(declared, consumers, workers), nil
}

func plan(build []manifest.Consumer, consumers []Consumer, workers []Worker) (all []Planned) {
	for _, b := range build {
		p := Planned{Consumer: b.Name}
		i := slices.IndexFunc(consumers, func(c Consumer) bool { return c.Name == b.Name })
		switch {
		case i < 0:
			p.begins(b)
			if version := otherVersion(b, build, consumers); version != "" {
				p.say("is a shadow: %s has the effects of its events, until a Switch", errtext.Value(version))
			}
		case consumers[i].RenamedTo != "":
			p.change("handles no event: the consumer was renamed to %s", errtext.Value(consumers[i].RenamedTo))
		default:
			if consumers[i].Shadow {
				p.say("is a shadow: another consumer has the effects of its events, until a Switch")
			}
			p.selects(b, consumers[i])
			p.partitions(b, consumers[i])
		}
		all = append(all, p)
	}
	for _, c := range consumers {
		if c.RenamedTo == "" && !slices.ContainsFunc(build, func(b manifest.Consumer) bool { return b.Name == c.Name }) {
			p := Planned{Consumer: c.Name}
			p.lacks(build, c, workers)
			all = append(all, p)
		}
	}
	return all
}

func (p *Planned) say(format string, args ...any) {
	p.Says = append(p.Says, fmt.Sprintf(format, args...))
}

func (p *Planned) change(format string, args ...any) {
	p.Changes = true
	p.say(format, args...)
}

// begins describes a consumer without a checkpoint.
func (p *Planned) begins(b manifest.Consumer) {
	p.change("new: begins %s, and selects %s", startWords(b.Start), b.Words())
	if b.Count > 1 {
		p.change("is split into %d partitions by %s", b.Count, keyWords(b.Key))
	}
}

// otherVersion returns the version of a new consumer's projection that has the effects. If all are new,
// the first by name has them.
func otherVersion(b manifest.Consumer, build []manifest.Consumer, consumers []Consumer) string {
	if b.Projection == "" {
		return ""
	}
	for _, c := range consumers {
		declared := slices.ContainsFunc(build, func(o manifest.Consumer) bool { return o.Name == c.Name && o.Projection == b.Projection })
		if !c.Shadow && c.RenamedTo == "" && (declared || c.Scope != nil && c.Scope.Projection == b.Projection) {
			return c.Name
		}
	}
	if i := slices.IndexFunc(build, func(o manifest.Consumer) bool { return o.Projection == b.Projection }); build[i].Name != b.Name {
		return build[i].Name
	}
	return ""
}

// startWords describes the start of a scope.
func startWords(start string) string {
	switch start {
	case "":
		return "at the first event"
	case "head":
		return "at the head of the log"
	}
	return "after position " + start
}

func keyWords(key string) string {
	if key == "" {
		return "the aggregate's id"
	}
	return "the key " + key
}

// selects compares what a build selects with what the checkpoint records.
func (p *Planned) selects(b manifest.Consumer, c Consumer) {
	if c.Scope == nil {
		p.say("the database does not know what its present code selects")
		return
	}
	was := scope.Of(c.Scope.Types, c.Scope.Version, c.Scope.Start, c.Scope.Projection)
	order := b.Scope.Compare(was)
	if order != 0 {
		p.change("selects %s, and selected %s", b.Words(), was.Words())
	}
	if types, all := was.Lacks(b.Scope); all || len(types) > 0 {
		added := scope.Of(types, 0, "", "").Words()
		if all {
			added = "the added types"
		}
		p.change("events of %s up to position %d are not delivered: ReplayTypes delivers them", added, c.Position)
	}
	switch {
	case order > 0:
		p.say("runs first: workers of the present build wait for it")
	case order < 0:
		p.say("waits while a worker of the present build lives")
	}
	if b.Start != was.Start {
		p.say("its start %s is ignored: it continues at position %d", startWords(b.Start), c.Position)
	}
}

// partitions compares a build's partition demand with the units.
func (p *Planned) partitions(b manifest.Consumer, c Consumer) {
	split, has := len(c.Units) > 0, max(len(c.Units), 1)
	n := partition.Number(c.Fixed, split, false, []partition.Demand{b.Demand})
	switch {
	case split && c.Units[0].Key != b.Key:
		p.change("stands still: it is split by %s, and this build splits it by %s: first deploy Count 1 with the old key", keyWords(c.Units[0].Key), keyWords(b.Key))
	case n != has:
		p.change("has %d partitions, and had %d", n, has)
	}
	if c.Fixed > 0 && c.Fixed != b.Count {
		p.say("its demand of %d partitions is ignored, since an operator has fixed %d", b.Count, c.Fixed)
	}
}

// lacks describes a consumer for which a build has no code. A worker that has code for it, and for
// no consumer of the build, is of another program, which the build does not replace.
func (p *Planned) lacks(build []manifest.Consumer, c Consumer, workers []Worker) {
	has, other := false, false
	for _, w := range workers {
		if slices.Contains(w.Able, c.Name) {
			has = true
			other = other || !slices.ContainsFunc(build, func(b manifest.Consumer) bool { return slices.Contains(w.Able, b.Name) })
		}
	}
	switch {
	case other:
		p.say("is not of this build, and another program runs it")
	case has:
		p.change("has no code in this build: it stands still at position %d until Retire removes it", c.Position)
	default:
		p.say("has no code in this build, and no worker has code for it now")
	}
}
