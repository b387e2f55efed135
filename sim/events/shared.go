package events

import (
	"context"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/stage"
)

// shared is what the actors of a run share.
type shared struct {
	*stage.Execution
	scenario Scenario
	on       *Database
	output   output
	news     news
	places   []*stage.Place[*node]
	handlers []func(ctx context.Context, b *LedgerConsumer, d Delivered) (done bool, err error) // the faults of handlers that are on
	broken   breachLedger
	ended    chan struct{} // closed when the faults end
}

// Inject is the injector of a run: it asks every fault of handlers that is on.
func (s *shared) Inject(ctx context.Context, b *LedgerConsumer, d Delivered) (done bool, err error) {
	for _, f := range s.handlers {
		if done, err := f(ctx, b, d); done {
			return true, err
		}
	}
	return false, nil
}

func (s *shared) Count(f history.Fault) { s.Tally.Add(f, 1) }

func (s *shared) Breached(x history.Breach) {
	x.Life = s.on.Life()
	s.broken.add(x)
}

// over reports whether the faults have ended.
func (s *shared) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}
