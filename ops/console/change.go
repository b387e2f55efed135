package console

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// changePath takes the forms of all changes.
const changePath = "change"

// changes are all kinds of changes that a form may ask for.
var changes = []ops.Kind{ops.KindPause, ops.KindResume, ops.KindSkip, ops.KindReset, ops.KindPartition, ops.KindRetry, ops.KindDiscard, ops.KindCancel, ops.KindRerun, ops.KindCap, ops.KindRetire, ops.KindReplay, ops.KindAcknowledge, ops.KindDrain}

// change is a change that a form requests.
type change struct {
	On       string // as in an Action
	Name     string // of the consumer or its unit, the queue or the schedule; the ID of the worker
	Place    string `json:",omitempty"` // where that worker runs, once it is known
	Kind     ops.Kind
	Position int64                 `json:",omitempty"` // of the event or dead letter, where to reset to, or the ID of the job or the run
	Number   *int64                `json:",omitempty"` // of partitions, or of jobs that run at once; nil: none
	Type     string                `json:",omitempty"` // of the aggregate to replay
	ID       string                `json:",omitempty"`
	From     string                `json:",omitempty"` // the step at which a run continues; empty: the steps that failed
	All      bool                  `json:",omitempty"` // dead letters that Filter takes
	Filter   *ops.DeadLetterFilter `json:",omitempty"`
	Jobs     *ops.JobFilter        `json:",omitempty"` // finished jobs, if the change is of many
	Through  string                `json:",omitempty"` // of an acknowledgement: when the last job of the preview failed
	Older    string                `json:"-"`
	Reason   string
	Revision int64  // of the consumer when the form was drawn, if the change requires an unchanged consumer
	Shown    string // a digest of the record that the preview has shown
	Confirm  string `json:"-"` // the name, typed by the operator
}

const (
	maxLetters = 10_000 // dead letters that one change takes
	maxJobs    = 100    // finished jobs that one change takes: its preview shows each
)

// changeOf reads a form.
func changeOf(r *http.Request) (a change, err error) {
	if err := r.ParseForm(); err != nil {
		return a, &refusal{http.StatusBadRequest, "The form cannot be read, or is too long."}
	}
	q := query{r.PostForm, &err}
	a = change{On: q.Get("on"), Name: q.Get("name"), Kind: ops.Kind(q.Get("kind")), Position: q.int("position"), Type: q.Get("aggregate_type"), ID: q.Get("aggregate_id"), From: q.Get("from"), All: q.Get("all") == "1",
		Reason: strings.TrimSpace(q.Get("reason")), Revision: q.int("revision"), Shown: q.Get("shown"), Through: q.Get("through"), Older: q.Get("older"), Confirm: q.Get("typed")}
	if q.Get("number") != "" {
		n := q.int("number")
		a.Number = &n
	}
	switch {
	case a.All && a.On == OnJob:
		a.Jobs = &ops.JobFilter{Kind: q.Get("job_kind"), Queue: q.Get("queue"), After: q.int("after"), Before: q.int("before")}
		if state := q.Get("state"); state != "" {
			a.Jobs.States = []jobs.State{jobs.State(state)}
		}
	case a.All:
		f := letterFilter(q)
		f.After = 0
		a.Filter = &f
	}
	switch {
	case err != nil:
	case !slices.Contains(changes, a.Kind):
		err = &refusal{http.StatusBadRequest, fmt.Sprintf("There is no change %.50q.", a.Kind)}
	case a.Reason == "":
		err = &refusal{http.StatusBadRequest, "Give a reason: it is recorded with the change."}
	case a.still() && q.Get("revision") == "":
		err = &refusal{http.StatusBadRequest, "The form lacks the revision that it was drawn from: load its page again."}
	case slices.Contains([]ops.Kind{ops.KindSkip, ops.KindReset}, a.Kind) && q.Get("position") == "":
		err = &refusal{http.StatusBadRequest, "Give a position."}
	case a.Kind == ops.KindPartition && a.Number == nil:
		err = &refusal{http.StatusBadRequest, "Give a number of partitions, or 0 for what the code demands."}
	}
	return a, err
}

// Title names the change for people.
func (a change) Title() string {
	name := a.Name
	switch {
	case a.Jobs != nil:
		return fmt.Sprintf("%s up to %d jobs that match", a.Kind, maxJobs)
	case a.On == OnJob:
		name = strconv.FormatInt(a.Position, 10)
	case a.On == OnFlow && a.From != "":
		return fmt.Sprintf("%s run %d from %s", a.Kind, a.Position, a.From)
	case a.On == OnFlow:
		return fmt.Sprintf("%s run %d", a.Kind, a.Position)
	case a.Kind == ops.KindAcknowledge:
		return fmt.Sprintf("%s the failed jobs of queue %s", a.Kind, name)
	case a.onWorker():
		name = cmp.Or(a.Place, a.Name)
	case a.Kind == ops.KindReplay:
		return fmt.Sprintf("%s %s %s to %s", a.Kind, a.Type, a.ID, name)
	case a.All:
		return fmt.Sprintf("%s all dead letters that match, of %s", a.Kind, name)
	case a.Kind == ops.KindRetry || a.Kind == ops.KindDiscard:
		return fmt.Sprintf("%s dead letter %s of %s", a.Kind, thousands(a.Position), name)
	}
	return fmt.Sprintf("%s %s %s", a.Kind, a.On, name)
}

// Typed reports whether the operator must type the name, since the change cannot be undone.
func (a change) Typed() bool { return a.On == OnConsumer && a.Kind == ops.KindRetire }

// onWorker reports whether the change is of a worker.
func (a change) onWorker() bool { return a.On == OnWorker || a.On == OnJobWorker }

// onEvents reports whether the change is one of ops.Operator.
func (a change) onEvents() bool { return a.On == OnConsumer || a.On == OnWorker }

// still reports whether the change requires an unchanged consumer. Such a change is refused if the
// consumer has moved since. The other changes are possible while batches move the consumer.
func (a change) still() bool {
	return a.On == OnConsumer && slices.Contains([]ops.Kind{ops.KindSkip, ops.KindReset, ops.KindResume, ops.KindRetire}, a.Kind)
}

// HasNumber reports whether the form has a number. N returns the number.
func (a change) HasNumber() bool { return a.Number != nil }
func (a change) N() int64        { return *a.Number }

// State is the state of the selected finished jobs; empty: failed.
func (a change) State() jobs.State {
	if len(a.Jobs.States) == 0 {
		return ""
	}
	return a.Jobs.States[0]
}

// Back is the page that shows the result of the change.
func (a change) Back() string {
	consumer := partition.Consumer(a.Name)
	switch {
	case a.Typed():
		return "./?"
	case a.Jobs != nil:
		return "jobs?" + url.Values{"state": {string(a.State())}, "kind": {a.Jobs.Kind}, "queue": {a.Jobs.Queue}}.Encode()
	case a.On == OnJob:
		return "job?" + url.Values{"id": {strconv.FormatInt(a.Position, 10)}}.Encode()
	case a.On == OnFlow:
		return "flow?" + url.Values{"id": {strconv.FormatInt(a.Position, 10)}}.Encode()
	case a.Kind == ops.KindAcknowledge:
		return "jobs?" + url.Values{"queue": {a.Name}, "state": {string(jobs.StateFailed)}}.Encode()
	case a.On == OnQueue:
		return "queues?"
	case a.On == OnSchedule:
		return "schedules?"
	case a.On == OnWorker:
		return "workers?"
	case a.On == OnJobWorker:
		return "jobworkers?"
	case a.All, a.Kind == ops.KindRetry, a.Kind == ops.KindDiscard, a.Kind == ops.KindReplay:
		return "letters?" + url.Values{"consumer": {consumer}}.Encode()
	}
	return "consumer?" + url.Values{"name": {consumer}}.Encode()
}

// record is the record of a change in the table of operations.
type record struct {
	Name   string
	Kind   ops.Kind
	Detail json.RawMessage
	Job    int64 `json:",omitempty"`
}

// previewPage shows the records that a change would write, with a form that confirms the change.
type previewPage struct {
	Change  change
	Records []record
	By      ops.By
}

func (p previewPage) heading() string { return "Preview: " + p.Change.Title() }

// change previews the change of a form, or makes it.
func (c *Console) change(w http.ResponseWriter, r *http.Request, g Grant) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	ctx, cancel := context.WithTimeout(r.Context(), changeLimit)
	defer cancel()
	a, err := changeOf(r)
	if err == nil {
		err = c.mayChange(ctx, g, a)
	}
	by := ops.By{Operator: g.Operator, Reason: a.Reason}
	if err == nil && r.PostForm.Get("step") == "make" {
		var back string
		if back, err = c.make(ctx, a, by); err == nil {
			// http.Redirect would prepend the request's path, which lacks the stripped prefix.
			w.Header().Set("Location", back+"&"+url.Values{"done": {string(a.Kind)}}.Encode())
			w.WriteHeader(http.StatusSeeOther)
			return
		}
	} else if err == nil {
		var p previewPage
		if p, err = c.preview(ctx, a, by); err == nil {
			c.show(w, r, http.StatusOK, "preview", &page{Title: p.heading(), Page: "preview", Grant: g, Data: p})
			return
		}
	}
	c.fail(w, r, g, late(ctx, err))
}

// mayChange refuses a change that Access does not allow.
func (c *Console) mayChange(ctx context.Context, g Grant, a change) error {
	no := &refusal{http.StatusForbidden, "You may read, and not make this change."}
	if g.Level < Operate {
		return no
	}
	if g.Operator == "" {
		return &refusal{http.StatusForbidden, "Access of this console names no operator, so nothing can be changed: changes are recorded under a name."}
	}
	name := a.Name
	switch a.On {
	case OnConsumer:
		name = partition.Consumer(a.Name)
	case OnJob:
		if a.Jobs != nil {
			name = cmp.Or(a.Jobs.Queue, ops.AllQueues)
			break
		}
		j, err := c.findJob(ctx, a.Position)
		if err != nil {
			return err
		}
		name = j.Queue
	case OnFlow:
		r, err := c.findRun(ctx, a.Position)
		if err != nil {
			return err
		}
		name = r.Flow
	}
	if !g.allows(Action{On: a.On, Kind: a.Kind, Name: name}) {
		return no
	}
	return nil
}

func (c *Console) preview(ctx context.Context, a change, by ops.By) (p previewPage, err error) {
	if a.onWorker() {
		if a.Place, err = c.placeOf(ctx, a); err != nil {
			return p, err
		}
	}
	p = previewPage{Change: a, By: by}
	var all []ops.Operation
	if a.onEvents() {
		all, err = c.decided(a).Preview(func(o *ops.Operator) error { return a.onConsumer(ctx, o, by) })
	} else {
		all, err = c.jobs.Preview(func(o *ops.Jobs) error { _, err := a.onJobs(ctx, o, by); return err })
	}
	p.Records = recordsOf(all)
	switch {
	case err != nil:
	case a.Jobs != nil:
		err = p.narrow()
	case a.Kind == ops.KindAcknowledge:
		err = p.through()
	}
	p.Change.Shown = digest(p.Records)
	return p, err
}

// narrow leaves out the jobs that finish after the preview.
func (p *previewPage) narrow() error {
	f := *p.Change.Jobs
	least, most := int64(0), int64(0)
	for _, r := range p.Records {
		if r.Job != 0 && (least == 0 || r.Job < least) {
			least = r.Job
		}
		most = max(most, r.Job)
	}
	if most == 0 {
		return &refusal{http.StatusConflict, "Nothing was changed: no job matches. Jobs that were retried before, and steps of flows, are passed over."}
	}
	f.After, f.Before = least-1, most+1
	p.Change.Jobs = &f
	return nil
}

// through leaves out the jobs that fail after the preview of an acknowledgement.
func (p *previewPage) through() error {
	var d struct {
		Jobs    int64  `json:"jobs"`
		Through string `json:"through"`
	}
	if err := json.Unmarshal(p.Records[0].Detail, &d); err != nil {
		return err
	}
	if d.Jobs == 0 {
		return &refusal{http.StatusConflict, "Nothing was changed: no failed job of this queue waits to be acknowledged."}
	}
	p.Change.Through = d.Through
	return nil
}

// make makes the previewed change or none, and returns the page that shows the result.
func (c *Console) make(ctx context.Context, a change, by ops.By) (back string, err error) {
	as := func(recorded []ops.Operation) error {
		if digest(recordsOf(recorded)) != a.Shown {
			return errOther
		}
		return nil
	}
	switch {
	case a.Typed() && a.Confirm != a.Name:
		return "", &refusal{http.StatusBadRequest, fmt.Sprintf("Nothing was changed: type the name %.100q to confirm, %.100q was typed.", a.Name, a.Confirm)}
	case a.On == OnConsumer && a.Kind == ops.KindPause: // a running consumer has moved since, and a second pause is refused
		err = a.onConsumer(ctx, c.consumers, by)
	case a.onEvents():
		do := func(o *ops.Operator) error { return a.onConsumer(ctx, o, by) }
		err = c.decided(a).Confirmed(do, as)
	default:
		var id int64
		do := func(o *ops.Jobs) (err error) { id, err = a.onJobs(ctx, o, by); return err }
		err = c.jobs.Confirmed(do, as)
		if a.Kind == ops.KindDiscard && a.Jobs == nil {
			return "jobs?", err
		}
		if id != 0 {
			a.Position = id // of the job that a retry has made
		}
	}
	return a.Back(), err
}

// decided returns the operator for a change, bound to the revision of the form if still is true.
func (c *Console) decided(a change) *ops.Operator {
	if a.still() {
		return c.consumers.IfRevision(a.Revision)
	}
	return c.consumers
}

// recordsOf leaves out the ID of the job that a retry makes: a preview draws one, and undoes that
// job.
func recordsOf(all []ops.Operation) (records []record) {
	for _, o := range all {
		records = append(records, record{cmp.Or(o.Consumer, o.Queue), o.Kind, without("new_job", o.Detail), o.Job})
	}
	return records
}

// without returns a detail without a field that differs each time.
func without(field string, detail json.RawMessage) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(detail, &fields) != nil || fields[field] == nil {
		return detail
	}
	delete(fields, field)
	text, _ := json.Marshal(fields) // a value that was decoded from JSON can be encoded
	return text
}

// moves names the field of a record that moves without an operator's change: the last position of a
// replay, and the settled position of a reset.
var moves = map[ops.Kind]string{ops.KindReplay: "to", ops.KindReset: "settled"}

// digest identifies the record of a change.
func digest(all []record) string {
	all = slices.Clone(all)
	for i, r := range all {
		if field := moves[r.Kind]; field != "" {
			all[i].Detail = without(field, r.Detail)
		}
	}
	text, _ := json.Marshal(all) // of JSON from the database it does not fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func (a change) unknown() error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf("There is no %s for a %.20s.", a.Kind, a.On)}
}

// worker is the ID of the worker that a form names.
func (a change) worker() (uuid.UUID, error) {
	id, err := uuid.Parse(a.Name)
	if err != nil {
		return id, &refusal{http.StatusBadRequest, fmt.Sprintf("%.50q is no ID of a worker.", a.Name)}
	}
	return id, nil
}

func (a change) onConsumer(ctx context.Context, o *ops.Operator, by ops.By) (err error) {
	if (a.On == OnWorker) != (a.Kind == ops.KindDrain) {
		return a.unknown()
	}
	switch a.Kind {
	case ops.KindDrain:
		id, err := a.worker()
		if err != nil {
			return err
		}
		return o.DrainWorker(ctx, id, by)
	case ops.KindPause:
		return o.Pause(ctx, a.Name, by)
	case ops.KindResume:
		return o.Resume(ctx, a.Name, by)
	case ops.KindSkip:
		return o.SkipEvent(ctx, a.Name, a.Position, by)
	case ops.KindReset:
		return o.Reset(ctx, a.Name, a.Position, by)
	case ops.KindReplay:
		return o.Replay(ctx, a.Name, a.Type, a.ID, by)
	case ops.KindRetire:
		return o.Retire(ctx, a.Name, by)
	case ops.KindPartition:
		return o.Partition(ctx, a.Name, int(min(*a.Number, 1<<30)), by)
	case ops.KindRetry:
		if a.All {
			_, err = o.RetryDeadLettersWhere(ctx, a.Name, *a.Filter, maxLetters, by)
			return err
		}
		return o.RetryDeadLetters(ctx, a.Name, a.Position, by)
	case ops.KindDiscard:
		if a.All {
			_, err = o.DiscardDeadLettersWhere(ctx, a.Name, *a.Filter, maxLetters, by)
			return err
		}
		return o.DiscardDeadLetter(ctx, a.Name, a.Position, by)
	}
	return a.unknown()
}

// onJobs returns the ID of the job that a retry has made.
func (a change) onJobs(ctx context.Context, o *ops.Jobs, by ops.By) (as int64, err error) {
	if a.Jobs != nil {
		switch a.Kind {
		case ops.KindRetry:
			_, err = o.RetryAll(ctx, *a.Jobs, maxJobs, by)
		case ops.KindDiscard:
			_, err = o.DiscardAll(ctx, *a.Jobs, maxJobs, by)
		default:
			err = a.unknown()
		}
		return 0, err
	}
	switch a.On + " " + string(a.Kind) {
	case "job cancel":
		_, err = o.Cancel(ctx, a.Position, by)
	case "job retry":
		return o.Retry(ctx, a.Position, by)
	case "job rerun":
		return o.Rerun(ctx, a.Position, by)
	case "job discard":
		err = o.Discard(ctx, a.Position, by)
	case "flow cancel":
		err = o.CancelFlowRun(ctx, a.Position, by)
	case "flow retry":
		err = o.RetryFlowRun(ctx, a.Position, by, a.from()...)
	case "queue acknowledge":
		var through time.Time
		if a.Through != "" {
			if through, err = time.Parse(time.RFC3339Nano, a.Through); err != nil {
				return 0, &refusal{http.StatusBadRequest, "The form has no time that it was previewed for: preview it again."}
			}
		}
		_, err = o.Acknowledge(ctx, a.Name, through, by)
	case "queue pause":
		err = o.PauseQueue(ctx, a.Name, by)
	case "queue resume":
		err = o.ResumeQueue(ctx, a.Name, by)
	case "queue cap":
		if a.Number == nil {
			return 0, o.RemoveCap(ctx, a.Name, by)
		}
		err = o.SetCap(ctx, a.Name, int(min(*a.Number, 1<<30)), by)
	case "schedule pause":
		err = o.PauseSchedule(ctx, a.Name, by)
	case "schedule resume":
		err = o.ResumeSchedule(ctx, a.Name, by)
	case "schedule retire":
		err = o.RemoveSchedule(ctx, a.Name, by)
	case "job worker drain":
		worker, err := a.worker()
		if err != nil {
			return 0, err
		}
		return 0, o.DrainWorker(ctx, worker, by)
	default:
		err = a.unknown()
	}
	return 0, err
}
