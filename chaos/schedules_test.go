//go:build unix

package chaos

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/mutants"
	"github.com/pgfrontier/worker/internal/lab/tier"
)

// A schedule each second, on five processes: the one that leads is killed every three
// seconds, and the clock of the first is an hour ahead. Each tick is one job.
// For longer: go run ./cmd/chaos -jobs -ahead -faults kill-leader=2 -duration 1m.
func TestSchedulesOfProcessesHold(t *testing.T) {
	tier.Long(t, "TestRunOfJobsHolds; package jobs/schedule has clocks that differ")
	root, err := mutants.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	program, err := mutants.BuildAhead(t.Context(), root, t.TempDir(), "./cmd/chaos")
	if err != nil {
		t.Fatal(err)
	}
	c := small(t, Faults{killLeader: 2})
	c.Jobs, c.Workers, c.Writers, c.Duration = true, 5, 2, 10*time.Second
	c.Ahead = []string{program, WorkerArgument}
	j := jobsHold(t, c)
	for _, x := range j.Runs {
		if x.Began < 0 || x.Began > 1800 { // seconds since the run began, which the first was told an hour later
			t.Fatalf("the clock of %s is not as it should be: %+v", x.Name, x)
		}
	}
	who := map[string]string{} // by the transactions that moved the schedule on
	for _, x := range j.Changes {
		who[x.Tx] = x.Who
	}
	var last int64
	by := map[string]int{}
	for _, tick := range j.Ticks {
		by[who[tick.Tx]]++
		if tick.Schedule != "second" {
			continue
		}
		if last != 0 && tick.Tick != last+1e6 {
			t.Errorf("after the tick %v comes %v", time.UnixMicro(last), time.UnixMicro(tick.Tick))
		}
		last = tick.Tick
	}
	if by["sim worker 1.1"] == 0 || len(by) < 5 {
		t.Errorf("ticks were enqueued by %v, want all processes, and the one whose clock is ahead", by)
	}
}
