package manifest_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/manifest"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
)

func TestManifestRoundTrip(t *testing.T) {
	t.Parallel()
	all := []manifest.Consumer{
		{"mail", scope.Of(nil, 0, "head", ""), partition.Single},
		{"totals", scope.Of([]string{"Order", "Invoice"}, 2, "", ""), partition.Demand{Count: 8, Key: "customer"}},
	}
	text, err := manifest.Text([]manifest.Consumer{all[1], all[0]})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := manifest.Parse(text); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("%s became %v, %v", text, got, err)
	}
}

func TestManifestIsRefused(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		``:                                 "no JSON that worker.Describe returns",
		`[]`:                               "no JSON that worker.Describe returns",
		`{}`:                               "format is 0",
		`{"format": 2}`:                    "format is 2, and this program reads format 1",
		`{"format": 1, "consumers": []}`:   "no consumers",
		`{"format": 1, "consumers": [{}]}`: "consumers[0]",
		`{"format": 1, "consumers": [{"name": "c", "count": 257}]}`:                          "a count of 257 partitions",
		`{"format": 1, "consumers": [{"name": "c", "count": 1}, {"name": "c", "count": 1}]}`: `consumer "c" twice`,
	} {
		if _, err := manifest.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}
