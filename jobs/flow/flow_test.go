package flow_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
)

// Jobs of the flow that resizes pictures.
type (
	listJob   struct{ Album string }
	resizeJob struct{ Picture string }
	zipJob    struct{ Album string }
)

func (listJob) Kind() string   { return "list" }
func (resizeJob) Kind() string { return "resize" }
func (zipJob) Kind() string    { return "zip" }

type album struct {
	*flow.Flow[string]
	list   *flow.Step[listJob, []resizeJob]
	resize *flow.Mapped[resizeJob, int]
	zip    *flow.Step[zipJob, string]
}

func newAlbum(opts ...flow.StepOption) album {
	f := flow.New[string]("album")
	list := flow.Add[[]resizeJob](f, "list", func(name string) listJob { return listJob{name} })
	resize := flow.Map[int](f, "resize", list, opts...)
	return album{f, list, resize, flow.Add[string](f, "zip", func(name string) zipJob { return zipJob{name} }, flow.After(resize))}
}

// Each element of a list becomes a job, and the results are the input of the next step.
func TestMap(t *testing.T) {
	for _, n := range []int{0, 1, 3, 2500} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			f := newAlbum()
			flow.Handle(s.Handlers, f.list, func(context.Context, *jobs.Job[listJob]) (all []resizeJob, err error) {
				for i := range n {
					all = append(all, resizeJob{fmt.Sprint(i)})
				}
				return all, nil
			})
			flow.Handle(s.Handlers, f.resize, func(_ context.Context, j *jobs.Job[resizeJob]) (n int, err error) {
				_, err = fmt.Sscan(j.Args.Picture, &n)
				return n * 10, err
			})
			flow.Handle(s.Handlers, f.zip, func(ctx context.Context, j *jobs.Job[zipJob]) (string, error) {
				sizes, err := f.resize.Outputs(ctx, s.Client, flow.RunOf(j.Header))
				for i, size := range sizes {
					if size != i*10 {
						return "", jobs.Fail(fmt.Errorf("the result of %d is %d", i, size))
					}
				}
				return fmt.Sprintf("%s of %d", j.Args.Album, len(sizes)), err
			})
			s.work(jobs.WithQueue("default", 100))
			run := start(s, f.Flow, "summer")
			r := s.ended(run)
			s.want("the run", "completed: list completed resize completed zip completed", r)
			if out, err := f.zip.Output(t.Context(), s.Client, run); err != nil || out != fmt.Sprintf("summer of %d", n) {
				t.Errorf("the output is %q, %v", out, err)
			}
			if got := r.Steps[1].Jobs[jobs.StateCompleted]; got != n || len(r.Steps[1].Items) != min(n, 1000) {
				t.Errorf("%d jobs have completed, %d are shown", got, len(r.Steps[1].Items))
			}
		})
	}
}
