package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/ops/console"
)

type chargeJob struct{ Cents int }

func (chargeJob) Kind() string { return "charge" }

type shipJob struct{}

func (shipJob) Kind() string { return "ship" }

// order is a flow whose second step fails for good while broken is set.
func order(name string) (f *flow.Flow[int], charge *flow.Step[chargeJob, string], ship *flow.Step[shipJob, flow.None]) {
	f = flow.New[int](name)
	charge = flow.Add[string](f, "charge", func(cents int) chargeJob { return chargeJob{cents} })
	ship = flow.Add[flow.None](f, "ship", func(int) shipJob { return shipJob{} }, flow.After(charge))
	return f, charge, ship
}

// ended runs a run of a flow until it has ended.
func (s *site) ended(t testing.TB, h *jobs.Handlers, run int64) jobs.State {
	t.Helper()
	w := jobs.NewWorker(s.DB, h, flow.Advance())
	done := make(chan error, 1)
	go func() { done <- w.Start(context.Background()) }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := flow.NewClient(jobs.NewClient(s.DB)).Wait(ctx, run)
	if ctx.Err() != nil {
		t.Fatal(err) // of a run that has failed, too, there is an error
	}
	w.Stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return r.State
}

// A run whose step has failed is found, let go on, and its pages say how it stands.
func TestRunsOfFlows(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: func(r *http.Request) console.Grant {
		if r.Header.Get("Operator") == "reader" {
			return console.Grant{Level: console.Read}
		}
		return operators(r)
	}})
	f, charge, ship := order("order")
	started, err := f.Start(t.Context(), flow.NewClient(jobs.NewClient(s.DB)), nil, 700)
	if err != nil {
		t.Fatal(err)
	}
	broken := true
	h := jobs.NewHandlers()
	flow.Handle(h, charge, func(context.Context, *jobs.Job[chargeJob]) (string, error) { return "card 4711", nil })
	flow.Handle(h, ship, func(context.Context, *jobs.Job[shipJob]) (flow.None, error) {
		if broken {
			return flow.None{}, jobs.Fail(errors.New(hostile))
		}
		return flow.None{}, nil
	})
	if state := s.ended(t, h, started.Run); state != jobs.StateFailed {
		t.Fatalf("the run is %s", state)
	}

	page := fmt.Sprint("flow?id=", started.Run)
	for address, want := range map[string][]string{
		"flows":                         {`<a href="` + page + `">`, "✕ failed"},
		"flows?state=failed&flow=order": {`<a href="` + page + `">`},
		"flows?state=running":           {"None."},
		page:                            {"charge", "✓ completed", "ship", "✕ failed", "&lt;script&gt;"},
	} {
		got := s.get(t, address).expect(t, http.StatusOK)
		for _, text := range want {
			if !strings.Contains(got.body, text) {
				t.Errorf("%s does not have %s:\n%s", address, text, got.body)
			}
		}
		if strings.Contains(got.body, "<script>alert") {
			t.Errorf("%s has markup of an error", address)
		}
	}
	for address, status := range map[string]int{"flow?id=0": http.StatusNotFound, "flow?id=99": http.StatusNotFound, "flow?id=x": http.StatusBadRequest, "flows?state=odd": http.StatusBadRequest} {
		s.get(t, address).expect(t, status)
	}

	const result = "card 4711"
	if got := s.get(t, page, "Accept", "application/json"); !strings.Contains(got.body, result) {
		t.Errorf("no result of a step:\n%s", got.body)
	}
	reader := s.get(t, page, "Operator", "reader").expect(t, http.StatusOK)
	if got := s.get(t, page, "Accept", "application/json", "Operator", "reader"); strings.Contains(got.body, result) || strings.Contains(reader.body, `action="change"`) {
		t.Errorf("a reader sees results or forms:\n%s\n%s", got.body, reader.body)
	}

	form := with(s.get(t, page).hidden(t, `value="retry"`), "from", "ship", "reason", "the carrier is back")
	s.do(t, http.MethodPost, "change", form, "Operator", "reader").expect(t, http.StatusForbidden)
	confirm := s.preview(t, form)
	made := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	if to := made.header.Get("Location"); !strings.HasPrefix(to, page) {
		t.Errorf("it leads to %s", to)
	}
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)
	var all struct{ Operations []ops.Operation }
	s.read(t, "queues", &all)
	if len(all.Operations) != 1 || all.Operations[0].Kind != ops.KindRetry || all.Operations[0].By != (ops.By{Operator: "ann", Reason: "the carrier is back"}) || !strings.Contains(string(all.Operations[0].Detail), `"ship"`) {
		t.Errorf("recorded %+v", all.Operations)
	}
	broken = false
	if state := s.ended(t, h, started.Run); state != jobs.StateCompleted {
		t.Errorf("the run is %s", state)
	}
}

// The results of the jobs of a Map step are seen by who may see payloads, as all others are.
func TestResultsOfMappedJobs(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: func(r *http.Request) console.Grant {
		if r.Header.Get("Operator") == "reader" {
			return console.Grant{Level: console.Read}
		}
		return operators(r)
	}})
	f := flow.New[int]("split")
	list := flow.Add[[]chargeJob](f, "list", func(int) shipJob { return shipJob{} })
	each := flow.Map[string](f, "each", list)
	started, err := f.Start(t.Context(), flow.NewClient(jobs.NewClient(s.DB)), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	h := jobs.NewHandlers()
	flow.Handle(h, list, func(context.Context, *jobs.Job[shipJob]) ([]chargeJob, error) { return []chargeJob{{1}, {2}}, nil })
	flow.Handle(h, each, func(context.Context, *jobs.Job[chargeJob]) (string, error) { return "card 4711", nil })
	if state := s.ended(t, h, started.Run); state != jobs.StateCompleted {
		t.Fatalf("the run is %s", state)
	}
	page := fmt.Sprint("flow?id=", started.Run)
	if got := s.get(t, page, "Accept", "application/json"); strings.Count(got.body, "card 4711") != 2 {
		t.Errorf("not the results of two jobs:\n%s", got.body)
	}
	if got := s.get(t, page, "Accept", "application/json", "Operator", "reader").expect(t, http.StatusOK); strings.Contains(got.body, "4711") {
		t.Errorf("a reader sees results:\n%s", got.body)
	}
}

// A run is cancelled once, by whom Allow lets change that flow.
func TestCancelRun(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: func(*http.Request) console.Grant {
		return console.Grant{Operator: "ann", Level: console.Operate, Allow: func(a console.Action) bool {
			return a == console.Action{On: console.OnFlow, Kind: ops.KindCancel, Name: "mine"}
		}}
	}})
	client := flow.NewClient(jobs.NewClient(s.DB))
	cancel := func(name string) (page string, form url.Values) {
		f, _, _ := order(name)
		started, err := f.Start(t.Context(), client, nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint("flow?id=", started.Run), url.Values{"on": {"flow"}, "kind": {"cancel"}, "position": {fmt.Sprint(started.Run)}, "name": {"mine"}, "reason": {"r"}}
	}
	page, form := cancel("theirs")
	s.do(t, http.MethodPost, "change", form).expect(t, http.StatusForbidden)
	if got := s.get(t, page); strings.Contains(got.body, `action="change"`) {
		t.Errorf("there is a form for what is not allowed:\n%s", got.body)
	}
	page, form = cancel("mine")
	s.get(t, page).hidden(t, `value="cancel"`)
	confirm := s.preview(t, form)
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)
	form.Set("kind", "retire")
	s.do(t, http.MethodPost, "change", form).expect(t, http.StatusForbidden)
	if n := s.count(t, `SELECT count(*) FROM jobs_operations`); n != 1 {
		t.Errorf("%d operations", n)
	}
}

// Of a run with many steps the page shows those that have not completed, and counts the
// others.
func TestLongRun(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	f := flow.New[int]("long")
	for i := range 150 {
		flow.Add[flow.None](f, fmt.Sprintf("step-%03d", i), func(int) shipJob { return shipJob{} })
	}
	started, err := f.Start(t.Context(), flow.NewClient(jobs.NewClient(s.DB)), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	page := fmt.Sprint("flow?id=", started.Run)
	shows := func(shown, hidden string) {
		t.Helper()
		got := s.get(t, page).expect(t, http.StatusOK)
		if n := strings.Count(got.body, `<th scope="row">step-`); n != 100 {
			t.Errorf("%d steps are shown", n)
		}
		if !strings.Contains(got.body, "50 more are not shown") || !strings.Contains(got.body, `<th scope="row">`+shown) || strings.Contains(got.body, `<th scope="row">`+hidden) {
			t.Errorf("want %s, and %s counted:\n%.3000s", shown, hidden, got.body)
		}
	}
	shows("step-000", "step-149")
	s.Exec(t, `UPDATE jobs_flow_steps SET state = 'completed', finished_at = now() WHERE name < 'step-060'`)
	shows("step-149", "step-020")
}
