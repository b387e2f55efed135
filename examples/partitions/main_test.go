package main

import (
	"testing"

	"github.com/pgfrontier/worker/examples/internal/program"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// The consumer is split while it runs. Its handler fails at an event that comes twice or out
// of order.
func TestPartitions(t *testing.T) {
	p := program.Start(t, []string{"DATABASE_URL=" + pgtest.Server(t).URL("")})
	p.Await(t, `^an operator fixes 8 parts$`)
	if handled := p.Await(t, `^parts: 8, events: (\d+) of 1200$`)[0]; handled == "1200" {
		t.Error("it was split when all was done")
	}
	p.Await(t, `^parts: 8, events: 1200 of 1200$`)
	p.Interrupt(t)
}
