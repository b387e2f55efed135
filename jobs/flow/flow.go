package flow

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/jobs"
)

// Flow is a set of steps that depend on each other. Its runs have an input of type In. Make a flow
// with [New] when the program starts, and do not change it once a run was started.
type Flow[In any] struct {
	def  definition
	jobs []func(in In) (queue.NewJob, error) // of the steps; nil for a Map step
}

// New makes a flow without steps. The name identifies the flow in the tables.
func New[In any](name string) *Flow[In] {
	f := &Flow[In]{def: definition{name: name}}
	f.def.check("flow", name)
	return f
}

// Step is a step that is one job. A is the type of the job's arguments, R the type of its result.
type Step[A jobs.Args, R any] struct{ place }

// Mapped is a step that is one job for each element of a list, see [Map].
type Mapped[A jobs.Args, R any] struct{ place }

// place is the place of a step in its flow.
type place struct {
	def *definition
	n   int // index in def.nodes; -1: the step was refused
}

func (p place) at() place { return p }

// Dependency is a step on which another step can depend: a [Step] or a [Mapped].
type Dependency interface{ at() place }

// None is the result type of a step without a result.
type None = struct{}

// Add adds a step. args makes the arguments of the step's job from the input of the run, when the
// run is started. args must return the same arguments for the same input. Name the type of the
// result first: Add[Receipt](order, ...).
//
// [Flow.Check] and [Flow.Start] return the error of an invalid step.
func Add[R, In any, A jobs.Args](f *Flow[In], name string, args func(in In) A, opts ...StepOption) *Step[A, R] {
	n, options := f.def.add(name, kindOf[A](&f.def, name), -1, opts)
	if args == nil {
		f.def.fail("step %s: the function that makes the arguments is nil", errtext.Value(name))
	}
	if n >= 0 {
		f.jobs = append(f.jobs, func(in In) (job queue.NewJob, err error) {
			defer func() {
				if v := recover(); v != nil {
					err = fmt.Errorf("the function that makes the arguments panicked: %s", errtext.Panic(v))
				}
			}()
			return jobflow.Job(args(in), options)
		})
	}
	return &Step[A, R]{place{&f.def, n}}
}

// Map adds a step that is one job for each element of a list. The list is the result of another
// step, on which the Map step depends, so its JSON is bounded by [jobs.MaxArgs]. The elements are
// the arguments of the jobs. The jobs begin once the list is complete. An empty or missing list
// makes no jobs and completes the step. The jobs of more than 10,000 elements are enqueued in
// pieces: the first job may have ended before the last is enqueued.
//
// The step completes when all of its jobs have completed, or as [Any] and [Quorum] say. It fails
// when too many jobs have failed.
func Map[R, In any, L, A jobs.Args](f *Flow[In], name string, list *Step[L, []A], opts ...StepOption) *Mapped[A, R] {
	if list == nil {
		f.def.fail("step %s: the step that makes the list is nil", errtext.Value(name))
		return &Mapped[A, R]{place{&f.def, -1}}
	}
	n, options := f.def.add(name, kindOf[A](&f.def, name), list.n, append([]StepOption{After(list)}, opts...))
	if n >= 0 {
		f.jobs = append(f.jobs, func(In) (queue.NewJob, error) {
			var zero A
			return jobflow.Job(zero, options) // the elements of the list are the arguments
		})
	}
	return &Mapped[A, R]{place{&f.def, n}}
}

func kindOf[A jobs.Args](d *definition, name string) (kind string) {
	defer func() {
		if v := recover(); v != nil {
			d.fail("step %s: method Kind of its arguments panicked: %s: it is asked of a zero value too", errtext.Value(name), errtext.Panic(v))
		}
	}()
	var zero A
	return zero.Kind()
}

// StepOption is an option of a step.
type StepOption func(d *definition, s *node)

// After makes a step wait until other steps have completed. If one of them does not complete, the
// step is skipped, unless [Any] or [Quorum] says otherwise.
func After(steps ...Dependency) StepOption { return dependsOn("After", onSuccess, nil, steps) }

// OnFailure makes a step wait until other steps have failed, were cancelled, or were skipped
// because of a failed step. Otherwise the step is not needed, and is skipped.
func OnFailure(steps ...Dependency) StepOption { return dependsOn("OnFailure", onFailure, nil, steps) }

// OnEnd makes a step wait until other steps have ended, in any state. The step does not begin in a
// run that was cancelled.
func OnEnd(steps ...Dependency) StepOption { return dependsOn("OnEnd", onEnd, nil, steps) }

// If makes a step wait until another step has completed with a result that contains the pattern.
// Containment is PostgreSQL's operator @>. If the result does not contain the pattern, the step is
// not needed, and is skipped: If(check, map[string]any{"risk": "high"}).
func If[A jobs.Args, R any](step *Step[A, R], pattern any) StepOption {
	return func(d *definition, s *node) {
		text, err := jobflow.Encode(pattern)
		if err != nil {
			d.fail("step %s: If: the pattern: %w", errtext.Value(s.name), err)
			return
		}
		if step == nil {
			d.fail("step %s: If: the step is nil", errtext.Value(s.name))
			return
		}
		dependsOn("If", onSuccess, text, []Dependency{step})(d, s)
	}
}

func dependsOn(option string, on condition, when json.RawMessage, steps []Dependency) StepOption {
	return func(d *definition, s *node) {
		if len(steps) == 0 {
			d.fail("step %s: %s takes a step or more: leave it out for a step that waits for none", errtext.Value(s.name), option)
		}
		for _, b := range steps {
			p, ok := placeOf(b)
			switch {
			case !ok:
				d.fail("step %s depends on a step that is nil", errtext.Value(s.name))
			case p.def != d:
				d.fail("step %s depends on a step of another flow", errtext.Value(s.name))
			case p.n >= 0:
				s.after = append(s.after, dependency{p.n, on, when})
			}
		}
	}
}

// placeOf returns the place of a dependency, which may be nil.
func placeOf(b Dependency) (p place, ok bool) {
	defer func() { _ = recover() }() // the interface may hold a nil pointer
	if b == nil {
		return p, false
	}
	p = b.at()
	return p, true
}

// Any begins the step, once, after one good end of its dependencies, and skips it if none can come any
// more. The other steps run on. For a [Map] step, the good ends are those of its jobs.
func Any() StepOption { return Quorum(1) }

// Quorum is Any with n good ends.
func Quorum(n int) StepOption {
	return func(d *definition, s *node) {
		if s.quorum != 0 {
			d.fail("step %s: Any or Quorum is given twice: Any is a quorum of 1", errtext.Value(s.name))
		}
		if s.quorum = n; n < 1 {
			d.fail("step %s: Quorum: %d is out of range, it takes 1 or more", errtext.Value(s.name), n)
		}
	}
}

// Optional lets the run continue after the failure of the step as if the step had completed. An
// [If] on the step is skipped, since there is no result. Optional has no effect if the step is
// skipped, by its If or because of others.
func Optional() StepOption { return func(_ *definition, s *node) { s.optional = true } }

// Enqueue sets options of the step's job: [jobs.Queue], [jobs.Priority], [jobs.In] from its
// enqueueing, [jobs.MaxAttempts], [jobs.MaxResets].
func Enqueue(opts ...jobs.EnqueueOption) StepOption {
	return func(_ *definition, s *node) { s.enqueue = append(s.enqueue, opts...) }
}

// Check returns an error that lists the problems of the flow's steps, or else the problems of their
// jobs. Call it in a test.
func (f *Flow[In]) Check() error {
	err := f.def.validate()
	if err == nil {
		var zero In
		_, err = f.shape(zero)
	}
	if err != nil {
		return fmt.Errorf("%w %s: %w", ErrInvalid, errtext.Value(f.def.name), err)
	}
	return nil
}

// shape returns the flow with the jobs of a run.
func (f *Flow[In]) shape(in In) (s shape, err error) {
	if err := f.def.validate(); err != nil {
		return s, err
	}
	s = f.def.compile()
	var all []error
	for i := range s.Steps {
		job, err := f.jobs[i](in)
		if err != nil {
			all = append(all, fmt.Errorf("step %s: %w", errtext.Value(s.Steps[i].Name), err))
		}
		s.Steps[i].Job = job
	}
	return s, errtext.Join(all...)
}

// Handle registers the handler of a step's kind, as [jobs.Register] does. The returned value is the
// result of the job. [Step.Output] gives the result to dependents.
//
// A kind has one handler, even if several steps are of this kind.
func Handle[A jobs.Args, R any](h *jobs.Handlers, step interface{ handles(A, R) }, handle func(ctx context.Context, j *jobs.Job[A]) (R, error), opts ...jobs.HandlerOption) {
	if handle == nil {
		jobs.Register[A](h, nil, opts...)
		return
	}
	jobs.Register(h, func(ctx context.Context, j *jobs.Job[A]) error {
		result, err := handle(ctx, j)
		return setResult(j, result, err)
	}, opts...)
}

// HandleTx is [Handle] with a transaction, as [jobs.RegisterTx] has one.
func HandleTx[A jobs.Args, R any](h *jobs.Handlers, step interface{ handles(A, R) }, handle func(ctx context.Context, tx *sql.Tx, j *jobs.Job[A]) (R, error), opts ...jobs.HandlerOption) {
	if handle == nil {
		jobs.RegisterTx[A](h, nil, opts...)
		return
	}
	jobs.RegisterTx(h, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[A]) error {
		result, err := handle(ctx, tx, j)
		return setResult(j, result, err)
	}, opts...)
}

func (*Step[A, R]) handles(A, R)   {}
func (*Mapped[A, R]) handles(A, R) {}

func setResult[A jobs.Args](j *jobs.Job[A], result any, err error) error {
	if _, none := result.(None); err != nil || none {
		return err
	}
	if err := j.SetResult(result); err != nil {
		return jobs.Fail(err) // the next attempt would fail in the same way
	}
	return nil
}

// Skip ends the step of a handler that returns it as skipped, since the step is not needed. The run
// continues as if the step had completed, without a result. The job is [jobs.StateCancelled].
func Skip(why string) error { return jobs.Discard(jobflow.Skipped{Why: why}) }

// marker is the content of the Meta of a step's job.
type marker struct {
	Step int64 `json:"flow_step"`
}

// RunOf returns the run of which a job is a step, 0 if the job is no step.
func RunOf(j jobs.Header) int64 {
	id, _ := stepOf(j.Meta)
	return id.run()
}

// check refuses an invalid name.
func (d *definition) check(what, name string) {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		d.fail("the name of %s, %s, takes 1 to %d bytes of text", what, errtext.Value(name), maxName)
	}
}

// ErrInvalid is in every error about an invalid flow.
var ErrInvalid = errors.New("flow: invalid flow")

// stepOf returns the step that the Meta of a job names.
func stepOf(meta json.RawMessage) (id stepID, ok bool) {
	var m marker
	if !bytes.Contains(meta, []byte(`"flow_step"`)) || json.Unmarshal(meta, &m) != nil {
		return 0, false
	}
	return stepID(m.Step), m.Step > 0
}
