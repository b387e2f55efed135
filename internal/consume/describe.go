package consume

import (
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/manifest"
	"github.com/pgfrontier/worker/store/consumer"
)

// Describe returns the manifest of consumers, or an ErrInvalidConfig if Start would refuse them.
func Describe(consumers []consumer.Consumer) ([]byte, error) {
	units, err := unitsOf(consumers)
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("worker: %w: %w", ErrInvalidConfig, err))
	}
	var all []manifest.Consumer
	for _, u := range units {
		all = append(all, manifest.Consumer{Name: u.consumerName, Scope: u.scope, Demand: u.demand})
	}
	return manifest.Text(all)
}
