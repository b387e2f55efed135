package metrics_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/observe/metrics"
)

// docs/observing.md has each metric as it is, in order, and no others.
func TestTableOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/observing.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented, want strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `pgfrontier.") && strings.Contains(line, "` | `pgfrontier_") {
			documented.WriteString(line)
		}
	}
	for _, m := range metrics.All() {
		attributes := strings.Join(m.Attributes, ", ")
		fmt.Fprintf(&want, "| `%s` | `%s` | %s | %s | %s |\n", m.Name, m.Prometheus(), m.Kind, attributes, m.Help)
	}
	if documented.String() != want.String() {
		t.Errorf("the table must be\n%s", &want)
	}
}
