package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/ops"
)

// changeFlags are those of every change.
type changeFlags struct {
	reason, operator string
	yes, dryRun      bool
	revision         revision
}

// revision is that of a consumer, if it was given: 0 is one, too.
type revision struct {
	given bool
	n     int64
}

func (r *revision) String() string { return "" }
func (r *revision) Type() string   { return "int" }

func (r *revision) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return errors.New("it is a number from 0")
	}
	*r = revision{true, n}
	return nil
}

// changes gives a verb the flags of a change.
func (a *app) changes(c *cobra.Command) *cobra.Command {
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&a.change.reason, "reason", "", "why; it is recorded (needed)")
	f.StringVar(&a.change.operator, "operator", "", "who (or PGFRONTIER_OPERATOR; default user@host)")
	f.BoolVar(&a.change.yes, "yes", false, "do not ask")
	f.BoolVar(&a.change.dryRun, "dry-run", false, "show what would be recorded, and change nothing")
	return c
}

// consumerChanges gives a verb the flags of a change of a consumer.
func (a *app) consumerChanges(c *cobra.Command) *cobra.Command {
	a.changes(c).Flags().Var(&a.change.revision, "if-revision", "refuse if the consumer has another revision than this one, of --dry-run or status -o json")
	return c
}

// by says who changes something, and why.
func (a *app) by() (ops.By, error) {
	if strings.TrimSpace(a.change.reason) == "" {
		return ops.By{}, usage("say why with --reason: the operations keep it")
	}
	return ops.By{Operator: a.who(), Reason: a.change.reason}, nil
}

// who is the operator.
func (a *app) who() string {
	return cmp.Or(a.change.operator, a.getenv("PGFRONTIER_OPERATOR"), whoami())
}

func whoami() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

// effect is what an operation would record.
type effect struct {
	On     string          `json:"on"`
	Kind   ops.Kind        `json:"operation"`
	Detail json.RawMessage `json:"detail"`
}

// preview is what a change would record, and of which state.
type preview struct {
	effects  []effect
	revision *int64 // of the consumer, before it was previewed; nil: it is none
}

// plan is a change before it is made.
type plan struct {
	what    string // "reset"
	name    string // of what; it is typed to confirm
	final   string // what cannot be undone; empty: all can
	preview func(ctx context.Context) (preview, error)
	// do makes the change. It refuses one that has become another than was shown; nil:
	// nothing was shown.
	do func(ctx context.Context, shown *preview) (did object, err error)
}

// carry makes a change, after a question if it cannot be undone.
func (a *app) carry(ctx context.Context, p plan) error {
	if a.change.dryRun {
		would, err := a.previewed(ctx, p)
		if err != nil {
			return err
		}
		data := object{"dry_run": true, "would_record": would.effects}
		if would.revision != nil {
			data["revision"] = *would.revision
		}
		return a.print(data, func() string { return "would record:\n" + told(would.effects) })
	}
	var shown *preview
	if p.final != "" && !a.change.yes {
		if !a.asks {
			return usage("%s of %s cannot be undone, and nobody is there to confirm it: read it with --dry-run, then give --yes", p.what, p.name)
		}
		would, err := a.previewed(ctx, p)
		if err != nil {
			return err
		}
		a.say("This would record:\n%s%s", told(would.effects), p.final)
		if err := a.confirm(ctx, p); err != nil {
			return err
		}
		shown = &would
	}
	did, err := a.done(ctx, p, shown)
	if err != nil {
		return err
	}
	text := outcomeText(p, did)
	if did == nil {
		did = object{}
	}
	did["done"], did["on"] = p.what, p.name
	a.printDone(did, text)
	return nil
}

// printDone prints what was done. If it cannot be printed, it was done all the same: a pipe
// that nobody reads must not end the process.
func (a *app) printDone(did object, text string) {
	signal.Ignore(syscall.SIGPIPE)
	if err := a.print(did, func() string { return text + "\n" }); err != nil {
		a.say("pgfrontier: %s, and cannot print it: %v", text, err)
	}
}

func (a *app) previewed(ctx context.Context, p plan) (preview, error) {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	return p.preview(ctx)
}

func (a *app) done(ctx context.Context, p plan, shown *preview) (object, error) {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	return p.do(ctx, shown)
}

func outcomeText(p plan, did object) string {
	text := fmt.Sprintf("%s of %s: done", p.what, clean(p.name))
	if n, ok := did["count"]; ok {
		text += fmt.Sprintf(", %v", n)
		if did["limited"] == true {
			text += ", up to --limit: there may be more"
		}
	}
	if id, ok := did["new_id"]; ok {
		text += fmt.Sprintf(", it runs as %v", id)
	}
	return text
}

// counted is the result of a change of up to limit ones.
func counted(n int64, limit int) object {
	return object{"count": n, "limited": n >= int64(limit)}
}

func told(would []effect) string {
	var b strings.Builder
	for _, e := range would {
		fmt.Fprintf(&b, "  %s of %s: %s\n", clean(string(e.Kind)), clean(dash(e.On)), clean(string(e.Detail)))
	}
	return b.String()
}

// confirm asks for the name. The answer is read apart, so that an interrupt ends the
// question.
func (a *app) confirm(ctx context.Context, p plan) error {
	fmt.Fprintf(a.talk, "Type %s to do it: ", clean(p.name))
	answers := make(chan string, 1)
	go func() {
		line, err := bufio.NewReader(a.in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			line = ""
		}
		answers <- strings.TrimRight(line, "\r\n")
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.talk)
		return ctx.Err()
	case answer := <-answers:
		return p.confirmedBy(answer)
	}
}

// confirmedBy refuses an answer that is not the name.
func (p plan) confirmedBy(answer string) error {
	if answer != p.name {
		return refuse("nothing was changed: %q is not %q", answer, p.name)
	}
	return nil
}

// basis is what must not have changed between what was shown and the change.
type basis int

const (
	// onRevision is the consumer's revision. Every batch of a worker raises it.
	onRevision basis = iota
	// onRecord is what the change records, for consumers that run.
	onRecord
	// onNothing is for what means the same whenever it is made.
	onNothing
)

// consumerChange is a change of a consumer, or of a unit.
type consumerChange struct {
	what, name string
	final      string // as in plan
	decided    basis
	do         func(ctx context.Context, o *ops.Operator, by ops.By) (object, error)
}

// onConsumer makes a change of a consumer.
func (a *app) onConsumer(ctx context.Context, c consumerChange) error {
	by, err := a.by()
	if err != nil {
		return err
	}
	o, err := a.operator(ctx)
	if err != nil {
		return err
	}
	if r := a.change.revision; r.given {
		o = o.IfRevision(r.n)
	}
	err = a.carry(ctx, c.plan(o, by))
	if errors.Is(err, ops.ErrNotFound) {
		bounded, cancel := a.bound(ctx)
		defer cancel()
		var unknown statusError
		if k := known(bounded, o, c.name); errors.As(k, &unknown) {
			err = k
		}
	}
	return err
}

// errOther refuses a change that would do something else than what was shown.
var errOther = refuse("nothing was changed: it would do something else now than what was shown: show it again")

func (c consumerChange) plan(o *ops.Operator, by ops.By) plan {
	p := plan{what: c.what, name: c.name, final: c.final}
	p.preview = func(ctx context.Context) (would preview, err error) {
		n, err := revisionOf(ctx, o, c.name) // first: if it moves now, the change is refused
		if err != nil {
			return would, err
		}
		all, err := o.Preview(func(o *ops.Operator) error { _, err := c.do(ctx, o, by); return err })
		return preview{effectsOf(all), &n}, err
	}
	p.do = func(ctx context.Context, shown *preview) (did object, err error) {
		switch {
		case shown != nil && c.decided == onRevision:
			return c.do(ctx, o.IfRevision(*shown.revision), by)
		case shown != nil && c.decided == onRecord:
			err = o.Confirmed(func(o *ops.Operator) error { did, err = c.do(ctx, o, by); return err }, func(all []ops.Operation) error {
				if !slices.EqualFunc(effectsOf(all), shown.effects, effect.equal) {
					return errOther
				}
				return nil
			})
			return did, err
		}
		return c.do(ctx, o, by)
	}
	return p
}

func (e effect) equal(other effect) bool {
	return e.On == other.On && e.Kind == other.Kind && bytes.Equal(e.Detail, other.Detail)
}

func effectsOf(all []ops.Operation) []effect {
	return listed(all, func(op ops.Operation) effect { return effect{op.Consumer, op.Kind, op.Detail} })
}

// revisionOf is the revision of a consumer, or of a unit.
func revisionOf(ctx context.Context, o *ops.Operator, name string) (int64, error) {
	all, err := o.Consumers(ctx)
	if err != nil {
		return 0, err
	}
	for _, c := range all {
		if c.Name == name {
			return c.Revision, nil
		}
		for _, u := range c.Units {
			if u.Name == name {
				return u.Revision, nil
			}
		}
	}
	return 0, unknownConsumer(name, all)
}

// known refuses a name that no consumer has.
func known(ctx context.Context, o *ops.Operator, name string) error {
	_, err := revisionOf(ctx, o, name)
	return err
}

func unknownConsumer(name string, all []ops.Consumer) error {
	names := listed(all, func(c ops.Consumer) string { return c.Name })
	if whole := partition.Consumer(name); slices.Contains(names, whole) {
		return refuse("consumer %q has no unit %q now: pgfrontier consumer NAME shows those that it has", whole, name)
	}
	return refuse("there is no consumer %q: there are %s", name, dash(cut(strings.Join(names, ", "), 400)))
}

// onJobs makes a change of jobs or queues.
func (a *app) onJobs(ctx context.Context, what, name, final string, do func(ctx context.Context, o *ops.Jobs, by ops.By) (object, error)) error {
	by, err := a.by()
	if err != nil {
		return err
	}
	o, err := a.jobs(ctx)
	if err != nil {
		return err
	}
	return a.carry(ctx, plan{
		what: what, name: name, final: final,
		preview: func(ctx context.Context) (preview, error) {
			all, err := o.Preview(func(o *ops.Jobs) error { _, err := do(ctx, o, by); return err })
			return preview{effects: jobsEffectsOf(all)}, err
		},
		do: func(ctx context.Context, shown *preview) (did object, err error) {
			if shown == nil {
				return do(ctx, o, by)
			}
			err = o.Confirmed(func(o *ops.Jobs) error { did, err = do(ctx, o, by); return err }, func(all []ops.Operation) error {
				if !slices.EqualFunc(jobsEffectsOf(all), shown.effects, effect.within) {
					return errOther
				}
				return nil
			})
			return did, err
		},
	})
}

func jobsEffectsOf(all []ops.Operation) []effect {
	return listed(all, func(op ops.Operation) effect {
		on := op.Queue
		if op.Job != 0 {
			on = fmt.Sprint("job ", op.Job)
		}
		return effect{cmp.Or(on, "jobs"), op.Kind, op.Detail}
	})
}

// within reports whether a change of jobs does no more than was shown. Of the jobs that a filter
// takes, some may be gone. A new job has another ID than the one that was shown.
func (e effect) within(shown effect) bool {
	known, filtered := jobsOf(shown)
	if !filtered {
		e.Detail, shown.Detail = withoutNewJob(e.Detail), withoutNewJob(shown.Detail)
		return e.equal(shown)
	}
	takes, _ := jobsOf(e)
	return e.On == shown.On && e.Kind == shown.Kind && !slices.ContainsFunc(takes, func(id int64) bool { return !slices.Contains(known, id) })
}

// jobsOf are the jobs that the cancellation of a filter takes. Other changes are not filtered.
func jobsOf(e effect) (ids []int64, filtered bool) {
	var d struct {
		Cancelled []int64 `json:"cancelled"`
		Asked     []int64 `json:"asked_to_end"`
	}
	_ = json.Unmarshal(e.Detail, &d) // of other changes they may be anything
	return slices.Concat(d.Cancelled, d.Asked), d.Cancelled != nil
}

// withoutNewJob leaves out the ID of the job that a retry makes.
func withoutNewJob(detail json.RawMessage) json.RawMessage {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(detail, &fields) // of what is no object there are none
	if fields["new_job"] == nil {
		return detail
	}
	delete(fields, "new_job")
	text, _ := json.Marshal(fields) // of what was JSON it does not fail
	return text
}
