package jobs

import (
	"sync/atomic"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/stage"
)

// shared is what the actors of a run share.
type shared struct {
	*stage.Execution
	scenario Scenario
	on       *database
	ledger   *ledger
	client   *jobs.Client // the harness's own
	places   []*stage.Place[*node]
	version  atomic.Int64           // of the program: a deployment raises it
	builds   stage.Builds[Scenario] // of the faults that are on
	stalls   chan struct{}          // one for each worker that may be stalled at a time
	emits    bool                   // there are consumers that enqueue what events ask for
}

// faultAll records that a fault affects all workers.
func (s *shared) faultAll() {
	for _, p := range s.places {
		if n := p.Current(); n != nil {
			s.ledger.fault(n.Name)
		}
	}
}

// unableAll records that any worker may be unable to store the end of a run.
func (s *shared) unableAll() {
	s.faultAll()
	for _, p := range s.places {
		if n := p.Current(); n != nil {
			n.unable.Store(true)
		}
	}
}
