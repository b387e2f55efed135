package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// changePath takes the forms of all changes.
const changePath = "change"

// changes are all kinds of changes that a form may ask for.
var changes = []ops.Kind{ops.KindPause, ops.KindResume, ops.KindSkip, ops.KindReset, ops.KindPartition, ops.KindRetry, ops.KindDiscard, ops.KindCancel, ops.KindRerun, ops.KindCap, ops.KindRename, ops.KindBegin, ops.KindShadow, ops.KindSwitch, ops.KindRetire, ops.KindReplay, ops.KindReplayTypes, ops.KindAcknowledge, ops.KindDrain}

// change is a change that a form requests.
type change struct {
	On       string // as in an Action
	Name     string // of the consumer or its unit, the queue or the schedule; the ID of the worker
	Place    string `json:",omitempty"` // where that worker runs, once it is known
	Kind     ops.Kind
	Position int64                 `json:",omitempty"` // of the event or dead letter, where to reset to, or the ID of the job or the run
	Number   *int64                `json:",omitempty"` // of partitions, or of jobs that run at once; nil: none
	Type     string                `json:",omitempty"` // of the aggregate to replay, or to deliver what was not selected
	ID       string                `json:",omitempty"`
	To       string                `json:",omitempty"` // the consumer's new name; of a shadow or a switch, the other consumer
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
	if err := unread(r.ParseForm()); err != nil {
		return a, err
	}
	q := query{r.PostForm, &err}
	a = change{On: q.Get("on"), Name: q.Get("name"), Kind: ops.Kind(q.Get("kind")), Position: q.int("position"), Type: q.Get("aggregate_type"), ID: q.Get("aggregate_id"), To: q.Get("to"), From: q.Get("from"), All: q.Get("all") == "1",
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
	case slices.Contains([]ops.Kind{ops.KindSkip, ops.KindReset, ops.KindBegin}, a.Kind) && q.Get("position") == "":
		err = &refusal{http.StatusBadRequest, "Give a position."}
	case a.namesAnother() && a.To == "":
		err = &refusal{http.StatusBadRequest, "Give the name of the other consumer."}
	case a.Kind == ops.KindPartition && a.Number == nil:
		err = &refusal{http.StatusBadRequest, "Give a number of partitions, or 0 for what the code demands."}
	}
	return a, err
}

// unread refuses a form that cannot be parsed.
func unread(err error) error {
	if err != nil {
		return &refusal{http.StatusBadRequest, fmt.Sprintf("The form cannot be read, or is longer than %d KiB, or a build than %d: pgfrontier takes longer ones.", maxBody>>10, maxBuild>>10)}
	}
	return nil
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
	case a.Kind == ops.KindReplayTypes:
		return fmt.Sprintf("deliver what %s has missed of %s", name, a.Type)
	case a.Kind == ops.KindRename:
		return fmt.Sprintf("%s %s to %s", a.Kind, name, a.To)
	case a.Kind == ops.KindBegin:
		return fmt.Sprintf("%s %s after position %s", a.Kind, name, thousands(a.Position))
	case a.Kind == ops.KindShadow:
		return fmt.Sprintf("begin %s as a %s beside %s", a.To, a.Kind, name)
	case a.Kind == ops.KindSwitch:
		return fmt.Sprintf("%s the effects of %s to %s", a.Kind, a.To, name)
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
	return a.On == OnConsumer && slices.Contains([]ops.Kind{ops.KindSkip, ops.KindReset, ops.KindResume, ops.KindRename, ops.KindRetire}, a.Kind)
}

// namesAnother reports whether the change has two consumers.
func (a change) namesAnother() bool {
	return slices.Contains([]ops.Kind{ops.KindRename, ops.KindShadow, ops.KindSwitch}, a.Kind)
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
	case a.Kind == ops.KindRename, a.Kind == ops.KindShadow:
		consumer = a.To
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
	case a.All, a.Kind == ops.KindRetry, a.Kind == ops.KindDiscard, a.Kind == ops.KindReplay, a.Kind == ops.KindReplayTypes:
		return "letters?" + url.Values{"consumer": {consumer}}.Encode()
	}
	return "consumer?" + url.Values{"name": {consumer}}.Encode()
}

// from are the steps at which a run continues; none: the steps that made the run fail.
func (a change) from() []string {
	if a.From == "" {
		return nil
	}
	return []string{a.From}
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
