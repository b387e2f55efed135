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
	"time"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/ops"
)

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
	c.fail(w, r, g, pgdriver.CutOff(ctx, err))
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
		j, err := c.reads.findJob(ctx, a.Position)
		if err != nil {
			return err
		}
		name = j.Queue
	case OnFlow:
		r, err := c.reads.findRun(ctx, a.Position)
		if err != nil {
			return err
		}
		name = r.Flow
	}
	if !g.allows(Action{On: a.On, Kind: a.Kind, Name: name}) || a.namesAnother() && !g.allows(Action{On: a.On, Kind: a.Kind, Name: a.To}) {
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
		all, err = c.reads.jobs.Preview(func(o *ops.Jobs) error { _, err := a.onJobs(ctx, o, by); return err })
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
		err = a.onConsumer(ctx, c.reads.consumers, by)
	case a.onEvents():
		do := func(o *ops.Operator) error { return a.onConsumer(ctx, o, by) }
		err = c.decided(a).Confirmed(do, as)
	default:
		var id int64
		do := func(o *ops.Jobs) (err error) { id, err = a.onJobs(ctx, o, by); return err }
		err = c.reads.jobs.Confirmed(do, as)
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
		return c.reads.consumers.IfRevision(a.Revision)
	}
	return c.reads.consumers
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

// moves names the fields of a record that move without an operator's change: the last position of
// replays, the events of replayed aggregates, the settled position of a reset or a begin, and where both
// consumers of a switch are.
var moves = map[ops.Kind][]string{
	ops.KindReplay: {"to"}, ops.KindReplayTypes: {"to", "events"},
	ops.KindReset: {"settled"}, ops.KindBegin: {"settled"},
	ops.KindSwitch: {"from_position", "to_position"},
}

// digest identifies the record of a change.
func digest(all []record) string {
	all = slices.Clone(all)
	for i, r := range all {
		for _, field := range moves[r.Kind] {
			all[i].Detail = without(field, all[i].Detail)
		}
	}
	text, _ := json.Marshal(all) // of JSON from the database it does not fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func (a change) onConsumer(ctx context.Context, o *ops.Operator, by ops.By) error {
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
	case ops.KindReplayTypes:
		return o.ReplayTypes(ctx, a.Name, []string{a.Type}, by)
	case ops.KindRename:
		return o.Rename(ctx, a.Name, a.To, by)
	case ops.KindBegin:
		return o.Begin(ctx, a.Name, a.Position, by)
	case ops.KindShadow:
		return o.Shadow(ctx, a.To, by)
	case ops.KindSwitch:
		return within(ctx, switchLimit, "Nothing was changed. ", func(ctx context.Context) error { return o.Switch(ctx, a.To, a.Name, by, nil) })
	case ops.KindRetire:
		return o.Retire(ctx, a.Name, by)
	case ops.KindPartition:
		return o.Partition(ctx, a.Name, int(min(*a.Number, 1<<30)), by)
	case ops.KindRetry, ops.KindDiscard:
		return a.onLetters(ctx, o, by)
	}
	return a.unknown()
}

// onLetters retries or discards one dead letter, or those of the filter.
func (a change) onLetters(ctx context.Context, o *ops.Operator, by ops.By) (err error) {
	switch {
	case a.Kind == ops.KindRetry && a.All:
		_, err = o.RetryDeadLettersWhere(ctx, a.Name, *a.Filter, maxLetters, by)
	case a.Kind == ops.KindRetry:
		err = o.RetryDeadLetters(ctx, a.Name, a.Position, by)
	case a.All:
		_, err = o.DiscardDeadLettersWhere(ctx, a.Name, *a.Filter, maxLetters, by)
	default:
		err = o.DiscardDeadLetter(ctx, a.Name, a.Position, by)
	}
	return err
}

// onMany changes the finished jobs of the filter.
func (a change) onMany(ctx context.Context, o *ops.Jobs, by ops.By) (err error) {
	switch a.Kind {
	case ops.KindRetry:
		_, err = o.RetryAll(ctx, *a.Jobs, maxJobs, by)
	case ops.KindDiscard:
		_, err = o.DiscardAll(ctx, *a.Jobs, maxJobs, by)
	default:
		err = a.unknown()
	}
	return err
}

// onJobs returns the ID of the job that a retry has made.
func (a change) onJobs(ctx context.Context, o *ops.Jobs, by ops.By) (as int64, err error) {
	if a.Jobs != nil {
		return 0, a.onMany(ctx, o, by)
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

// placeOf returns where the worker of a change runs: people know workers by place, not by ID.
func (c *Console) placeOf(ctx context.Context, a change) (string, error) {
	workers := c.reads.consumers.Workers
	if a.On == OnJobWorker {
		workers = c.reads.jobs.Workers
	}
	id, err := a.worker()
	if err != nil {
		return "", err
	}
	all, err := workers(ctx)
	for _, w := range all {
		if w.ID == id {
			return placeOf(w), nil
		}
	}
	return "", err
}
