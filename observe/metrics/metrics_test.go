package metrics_test

import (
	"testing"

	"github.com/pgfrontier/worker/internal/lab/metricstest"
)

func subject(*testing.T) metricstest.Subject {
	p := newPlain()
	return metricstest.Subject{Adapter: p, Read: p.read}
}

// Each metric moves when a real worker does what it counts.
func TestEvents(t *testing.T) { metricstest.Events(t, subject) }

func TestJobs(t *testing.T) { metricstest.Jobs(t, subject) }
