package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sort"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
)

// queuesPage shows the queues, and the operations on queues and jobs.
type queuesPage struct {
	Queues     []ops.Queue
	NextQueue  string `json:",omitempty"` // the key of the next page of queues; empty: this is the last
	Operations []ops.Operation
	Next       int64 `json:",omitempty"`
}

// Names are the names of the queues.
func (p queuesPage) Names() (all []string) {
	for _, q := range p.Queues {
		all = append(all, q.Name)
	}
	return all
}

func (r *jobReads) queues(ctx context.Context, q query, _ Grant) (any, error) {
	var p queuesPage
	var err error
	if p.Queues, err = r.jobs.Queues(ctx); err != nil {
		return nil, err
	}
	// The first, which is all together, is on each page.
	some, next := pageOf(p.Queues[1:], func(q ops.Queue) string { return q.Name }, q.Get("after"))
	p.Queues, p.NextQueue = append(p.Queues[:1:1], some...), next
	all, err := r.jobs.Operations(ctx, ops.OperationFilter{Before: q.int("before")}, perPage+1)
	p.Operations, p.Next = firstOf(all, operationID)
	return p, err
}

// jobsPage are jobs by a filter.
type jobsPage struct {
	Filter ops.JobFilter
	State  jobs.State   `json:"-"`
	States []jobs.State `json:"-"` // to choose from
	Jobs   []ops.Job
	Next   int64 `json:",omitempty"`
}

var jobStates = []jobs.State{jobs.StateAvailable, jobs.StateRunning, jobs.StateCompleted, jobs.StateFailed, jobs.StateCancelled, jobs.StateExpired}

// Many reports whether the jobs may be retried or discarded together.
func (p jobsPage) Many() bool {
	return slices.Contains([]jobs.State{jobs.StateFailed, jobs.StateExpired, jobs.StateCancelled}, p.State)
}

// Acknowledges reports whether the failed jobs of one queue are shown.
func (p jobsPage) Acknowledges() bool { return p.State == jobs.StateFailed && p.Filter.Queue != "" }

// Queues is the queue of the filter, or all.
func (p jobsPage) Queues() string { return cmp.Or(p.Filter.Queue, ops.AllQueues) }

func (r *jobReads) list(ctx context.Context, q query, g Grant) (any, error) {
	p := jobsPage{Filter: ops.JobFilter{Kind: q.Get("kind"), Queue: q.Get("queue"), Before: q.int("before")}, State: jobs.State(q.Get("state")), States: jobStates}
	if p.State != "" {
		p.Filter.States = []jobs.State{p.State}
	}
	all, err := r.jobs.List(ctx, p.Filter, perPage+1)
	for i := range all {
		all[i] = shown(all[i], g)
	}
	p.Jobs, p.Next = firstOf(all, func(j ops.Job) int64 { return j.ID })
	return p, err
}

// shown returns the fields of a job that the sender may see.
func shown(j ops.Job, g Grant) ops.Job {
	if g.Level < Payloads {
		j.Args, j.Meta, j.Result = nil, nil, nil
	}
	return j
}

// jobPage is a job with its history.
type jobPage struct {
	Job        ops.Job
	Attempts   []jobs.Attempt
	Operations []ops.Operation
	Finished   bool `json:"-"`
}

// Latest are the runs that its table has.
func (p jobPage) Latest() []jobs.Attempt { return p.Attempts[max(len(p.Attempts)-perPage, 0):] }

func (p jobPage) heading() string { return fmt.Sprintf("Job %d", p.Job.ID) }

func (r *jobReads) job(ctx context.Context, q query, g Grant) (any, error) {
	j, err := r.findJob(ctx, q.int("id"))
	if err != nil {
		return nil, err
	}
	p := jobPage{Job: shown(j, g), Finished: j.FinishedAt != nil}
	if p.Attempts, err = r.jobs.Attempts(ctx, j.ID); err != nil {
		return nil, err
	}
	p.Operations, err = r.jobs.Operations(ctx, ops.OperationFilter{Job: j.ID}, perPage)
	return p, err
}

func (r *jobReads) findJob(ctx context.Context, id int64) (ops.Job, error) {
	if id > 0 {
		all, err := r.jobs.List(ctx, ops.JobFilter{After: id - 1, Before: id + 1}, 1)
		if err != nil || len(all) > 0 {
			return append(all, ops.Job{})[0], err
		}
	}
	return ops.Job{}, &refusal{http.StatusNotFound, fmt.Sprintf("There is no job %d. A finished job is deleted when its retention is over.", id)}
}

type schedulesPage struct {
	Schedules []ops.ScheduleInfo
	Next      string `json:",omitempty"`
}

// Names are the names of the schedules.
func (p schedulesPage) Names() (all []string) {
	for _, s := range p.Schedules {
		all = append(all, s.Name)
	}
	return all
}

func (r *jobReads) schedules(ctx context.Context, q query, _ Grant) (any, error) {
	all, err := r.jobs.Schedules(ctx)
	some, next := pageOf(all, func(s ops.ScheduleInfo) string { return s.Name }, q.Get("after"))
	return schedulesPage{some, next}, err
}

const namesPerPage = 100

// firstOf returns the first page of a list that has one element more, if there is another page. next is
// the key of that; 0: there is none.
func firstOf[T any](all []T, key func(T) int64) (some []T, next int64) {
	if len(all) > perPage {
		return all[:perPage], key(all[perPage-1])
	}
	return all, 0
}

func operationID(o ops.Operation) int64 { return o.ID }

// pageOf returns the page of a list that begins after the name after. The list is in order of
// names. next is the key of the next page; empty: there is none.
func pageOf[T any](all []T, name func(T) string, after string) (some []T, next string) {
	all = all[sort.Search(len(all), func(i int) bool { return name(all[i]) > after }):]
	if len(all) > namesPerPage {
		return all[:namesPerPage], name(all[namesPerPage-1])
	}
	return all, ""
}
