package flow_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/migrations"
)

// Purchase is the input of a run.
type Purchase struct{ ID int }

type (
	Charge struct{ Order int }
	Pack   struct{ Order int }
	Ship   struct{ Order int }
)

func (Charge) Kind() string { return "charge" }
func (Pack) Kind() string   { return "pack" }
func (Ship) Kind() string   { return "ship" }

// Receipt is the result of the step that charges.
type Receipt struct{ Number string }

// Two steps run in parallel. A third step runs after both, and reads the result of one of them.
func Example() {
	ctx := context.Background()
	d, done := exampleDatabase(ctx)
	defer done()

	purchase := flow.New[Purchase]("purchase")
	charge := flow.Add[Receipt](purchase, "charge", func(p Purchase) Charge { return Charge{p.ID} })
	pack := flow.Add[flow.None](purchase, "pack", func(p Purchase) Pack { return Pack{p.ID} })
	ship := flow.Add[string](purchase, "ship", func(p Purchase) Ship { return Ship{p.ID} }, flow.After(charge, pack))

	flows := flow.NewClient(jobs.NewClient(d.DB))
	handlers := jobs.NewHandlers()
	flow.Handle(handlers, charge, func(_ context.Context, j *jobs.Job[Charge]) (Receipt, error) {
		return Receipt{fmt.Sprint("R-", j.Args.Order)}, nil
	})
	flow.Handle(handlers, pack, func(context.Context, *jobs.Job[Pack]) (flow.None, error) { return flow.None{}, nil })
	flow.Handle(handlers, ship, func(ctx context.Context, j *jobs.Job[Ship]) (string, error) {
		receipt, err := charge.Output(ctx, flows, flow.RunOf(j.Header))
		return "parcel with " + receipt.Number, err
	})
	worker := jobs.NewWorker(d.DB, handlers, flow.Advance())
	ended := make(chan error, 1)
	go func() { ended <- worker.Start(ctx) }()

	started, err := purchase.Start(ctx, flows, nil, Purchase{ID: 7}, flow.Key("order 7"))
	if err != nil {
		log.Fatal(err)
	}
	run, err := flows.Wait(ctx, started.Run)
	if err != nil {
		log.Fatal(err)
	}
	parcel, err := ship.Output(ctx, flows, run.ID)
	fmt.Println(run.State, parcel, err)
	worker.Stop()
	fmt.Println(<-ended)
	// Output:
	// completed parcel with R-7 <nil>
	// <nil>
}

type (
	List   struct{ Album string }
	Resize struct{ Picture string }
)

func (List) Kind() string   { return "list" }
func (Resize) Kind() string { return "resize" }

// A job runs for each element of a list. One job fails, and only this job runs again.
func ExampleMap() {
	ctx := context.Background()
	d, done := exampleDatabase(ctx)
	defer done()

	album := flow.New[string]("album")
	list := flow.Add[[]Resize](album, "list", func(name string) List { return List{name} })
	resize := flow.Map[int](album, "resize", list, flow.Enqueue(jobs.MaxAttempts(1)))

	handlers := jobs.NewHandlers()
	flow.Handle(handlers, list, func(_ context.Context, j *jobs.Job[List]) ([]Resize, error) {
		return []Resize{{j.Args.Album + "/a"}, {j.Args.Album + "/b"}, {j.Args.Album + "/c"}}, nil
	})
	full := true
	flow.Handle(handlers, resize, func(_ context.Context, j *jobs.Job[Resize]) (int, error) {
		if full && strings.HasSuffix(j.Args.Picture, "b") {
			return 0, errors.New("the disk is full")
		}
		return len(j.Args.Picture), nil
	})
	worker := jobs.NewWorker(d.DB, handlers, jobs.WithQueue("default", 1), flow.Advance())
	ended := make(chan error, 1)
	go func() { ended <- worker.Start(ctx) }()

	flows := flow.NewClient(jobs.NewClient(d.DB))
	started, err := album.Start(ctx, flows, nil, "summer")
	if err != nil {
		log.Fatal(err)
	}
	run, err := flows.Wait(ctx, started.Run)
	fmt.Println(run.State, run.Steps[1].Jobs)
	var failed *flow.FailedError
	if errors.As(err, &failed) {
		fmt.Println(failed.Step, failed.Text)
	}

	full = false // no handler runs now
	if err := flows.Retry(ctx, nil, run.ID); err != nil {
		log.Fatal(err)
	}
	run, err = flows.Wait(ctx, started.Run)
	fmt.Println(run.State, run.Steps[1].Jobs, err)
	sizes, err := resize.Outputs(ctx, flows, run.ID)
	fmt.Println(sizes, err)
	worker.Stop()
	fmt.Println(<-ended)
	// Output:
	// failed map[completed:2 failed:1]
	// resize the disk is full
	// completed map[completed:3] <nil>
	// [8 8 8] <nil>
	// <nil>
}

// exampleDatabase makes a database with the tables of jobs. A program has a database already.
func exampleDatabase(ctx context.Context) (d *pgtest.Database, done func()) {
	t, done := pgtest.Example()
	d = pgtest.Empty(t)
	if err := migrations.ApplyJobs(ctx, d.DB, nil); err != nil {
		log.Fatal(err)
	}
	return d, done
}
