package flow_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/ops"
)

// Flows advance in a queue of retention 0: the history gets the jobs of steps, also of steps without
// a result, and keeps each until its flow has recorded the end.
func TestRetentionZero(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	o, err := ops.NewJobs(s.d.DB)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.SetRetention(t.Context(), "default", 0, ops.By{Operator: "ann", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	f := flow.New[int]("order")
	charge := flow.Add[flow.None](f, "charge", func(n int) chargeJob { return chargeJob{n} })
	flow.Add[flow.None](f, "ship", func(n int) shipJob { return shipJob{n} }, flow.After(charge))
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[chargeJob]) error { return nil })
	jobs.RegisterTx(s.Handlers, func(context.Context, *sql.Tx, *jobs.Job[shipJob]) error { return nil })
	s.work(jobs.WithQueue("default", 10))
	var runs []int64
	for n := range 20 {
		runs = append(runs, start(s, f, n))
	}
	for _, run := range runs {
		s.want("the run", "completed: charge completed ship completed", s.ended(run))
	}
}
