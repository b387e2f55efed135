package runtime

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/refusal"
	"github.com/pgfrontier/worker/observe"
)

// A worker is refused a pool that is too small for its own statements, and invalid arguments.
func TestStartValidates(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).DB
	s := Start{Package: "jobs", DB: pgdriver.NewPool(db), Least: 4, Further: "one more for every handler"}
	wants := func(says ...string) {
		t.Helper()
		err := s.Validate(nil, errors.New("another argument"))
		for _, text := range append(says, "jobs: ", "another argument") {
			if !errors.Is(err, refusal.ErrInvalidConfig) || !strings.Contains(err.Error(), text) {
				t.Errorf("the error is %v, want %q", err, text)
			}
		}
	}
	if err := s.Validate(nil); err != nil {
		t.Errorf("a pool without a limit: %v", err)
	}
	db.SetMaxOpenConns(4)
	if err := s.Validate(); err != nil {
		t.Errorf("a pool of the right size: %v", err)
	}
	wants()
	db.SetMaxOpenConns(3)
	wants("db allows 3 open connections, a worker needs at least 4 (and one more for every handler)")
	s.DB = pgdriver.NewPool(nil)
	wants("db is nil")
}

// The checks of a worker follow those of all workers. A session that takes no writes is refused
// before.
func TestStartChecks(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	own := errors.New("refused by the worker")
	check := func(s Start) error {
		return s.Check(t.Context(), func(context.Context, pgdriver.Pooling, bool) error { return own })
	}
	one := d.OpenPQ(t)
	one.SetMaxOpenConns(1)
	readOnly := d.OpenSet(t, "default_transaction_read_only", "on")
	for name, c := range map[string]struct {
		s    Start
		want error
	}{
		"a worker":                    {Start{Package: "jobs", DB: pgdriver.NewPool(d.DB), Least: 4}, own},
		"one connection":              {Start{Package: "jobs", DB: pgdriver.NewPool(one)}, own},
		"no writes":                   {Start{Package: "jobs", DB: pgdriver.NewPool(readOnly), Least: 4}, refusal.ErrStandby},
		"connections of another pool": {Start{Package: "jobs", DB: pgdriver.NewPool(d.OpenLent(t, 4)), Least: 4}, pgdriver.ErrNoLimit},
		"such, of any number":         {Start{Package: "jobs", DB: pgdriver.NewPool(d.OpenLent(t, 4))}, own},
	} {
		if err := check(c.s); !errors.Is(err, c.want) || c.want != own && !strings.HasPrefix(err.Error(), "jobs: ") {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// A start waits for the database, and reports that, and the end. After Limit it gives up.
func TestStartReaches(t *testing.T) {
	t.Parallel()
	db, back := pgtest.Empty(t).OpenAway(t)
	failed, over := make(chan observe.TaskFailed, 100), make(chan observe.Recovered, 100)
	s := Start{Package: "jobs", DB: pgdriver.NewPool(db), Limit: time.Nanosecond, Option: "WithStartLimit",
		Observers: NewObservers(observe.Worker{Kind: observe.KindJobs}, nil, []observe.Observer{observe.On(func(e observe.TaskFailed) { failed <- e }), observe.On(func(e observe.Recovered) { over <- e })})}
	step := func(ctx context.Context) error {
		return s.Check(ctx, func(context.Context, pgdriver.Pooling, bool) error { return nil })
	}
	if err := s.Reach(t.Context(), step); !errors.Is(err, refusal.ErrOutage) || !strings.HasSuffix(err.Error(), "(WithStartLimit)") {
		t.Errorf("with a limit: %v", err)
	}
	s.Limit = 0
	reached := make(chan error, 1)
	go func() { reached <- s.Reach(t.Context(), step) }()
	if e := await(t, failed, "the failure"); e.Kind != observe.KindJobs || e.Task != "start" || !strings.Contains(e.Err.Error(), "the database does not answer") {
		t.Errorf("reported: %+v", e)
	}
	back()
	if err := await(t, reached, "the start"); err != nil {
		t.Errorf("the start failed: %v", err)
	}
	if e := await(t, over, "the end of the condition"); e.Condition != observe.ConditionDatabase || e.Err == nil {
		t.Errorf("reported the end of %+v", e)
	}
}
