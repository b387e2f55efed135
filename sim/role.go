package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/sim/history"
)

// Role is what a process needs to know that is a worker of a run.
type Role struct {
	Name     string // in the history: "worker 2.1"
	URL      string // of the run's database; secret
	Scenario Scenario
}

// Play runs the worker until ctx ends or it fails. What happens is told as it
// happens.
func (r Role) Play(ctx context.Context, tell func(history.Record)) error {
	config, err := pgx.ParseConfig(r.URL)
	if err != nil {
		return errors.New("sim: the connection string cannot be parsed (not shown, it may hold a password)")
	}
	config.RuntimeParams["application_name"] = "sim " + r.Name
	config.DefaultQueryExecMode = oneOf(dice(r.Scenario.Seed, "node "+r.Name), execModes...)
	n := &node{name: r.Name, knobs: r.Scenario.Knobs, db: stdlib.OpenDB(*config)}
	defer n.db.Close()
	n.db.SetMaxOpenConns(poolSize(len(r.Scenario.Scope)))
	n.db.SetMaxIdleConns(poolSize(len(r.Scenario.Scope)))
	n.employ(r.Scenario, history.Tell(time.Now(), tell), noMischief{}, r.URL)
	config.RuntimeParams[myself] = n.id() // before there is a connection: the pool shares the map
	return n.worker.Start(ctx)
}

// noMischief leaves consumers alone.
type noMischief struct{}

func (noMischief) flap(context.Context, *rand.Rand, string, string) bool { return false }
func (noMischief) fail(*rand.Rand, string, string) error                 { return nil }
func (noMischief) refuse(string, string, int64) error                    { return nil }
func (noMischief) over() bool                                            { return true }
func (noMischief) count(history.Fault)                                   {}
func (noMischief) breached(history.Breach)                               {}
