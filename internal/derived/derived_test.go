package derived

import (
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/ident"
)

func TestNames(t *testing.T) {
	for name, want := range map[string][2]string{
		"consumer_checkpoints": {"consumer_checkpoints_token", "consumer_dead_letters"},
		"progress":             {"progress_token", "progress_dead_letters"},
	} {
		derived, err := From("ConsumerCheckpointsTable", ident.Table{Schema: "infra", Name: name})
		got := [2]string{derived.Token.Name, derived.DeadLetters.Name}
		if err != nil || got != want || derived.Operations.Schema != "infra" {
			t.Errorf("beside %s there are %v in schema %q, want %v; %v", name, got, derived.Operations.Schema, want, err)
		}
	}
	_, err := From("ConsumerCheckpointsTable", ident.Table{Name: strings.Repeat("x", 58)})
	if err == nil || !strings.Contains(err.Error(), "ConsumerCheckpointsTable") {
		t.Errorf("a name that cannot be lengthened gave %v", err)
	}
}
