package prometheus

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pgfrontier/worker/observe/metrics"
)

// A series that is dropped is not served any more, and others are.
func TestDrop(t *testing.T) {
	c := New()
	for _, m := range metrics.All() {
		if m.Kind != metrics.Histogram {
			continue
		}
		one, two := make([]string, len(m.Attributes)), make([]string, len(m.Attributes))
		for i := range one {
			one[i], two[i] = "one", "two"
		}
		record := c.histograms.Open(m, one...)
		c.histograms.Open(m, two...)(t.Context(), 1)
		record(t.Context(), 1)
		c.histograms.Drop(m, one...)
		record(t.Context(), 1)
		if n := testutil.CollectAndCount(c.histograms.of[m]); n != 1 {
			t.Errorf("%s has %d series", m.Name, n)
		}
	}
}
