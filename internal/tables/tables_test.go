package tables

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for name, want := range map[string][2]string{
		"consumer_checkpoints": {"consumer_checkpoints_token", "consumer_dead_letters"},
		"progress":             {"progress_token", "progress_dead_letters"},
	} {
		n := Names{ConsumerCheckpoints: "infra." + name, Events: "log.facts"}.OrDefault()
		got, err := Parse(n, "")
		if err != nil || [2]string{got.Token.Name, got.DeadLetters.Name} != want || got.Operations.Schema != "infra" {
			t.Errorf("beside %s there are %v and %v, want %v; %v", name, got.Token, got.DeadLetters, want, err)
		}
		if got.Events.String() != "log.facts" || got.Heads.String() != Default.AggregateHeads || got.Nodes.String() != Default.WorkerNodes {
			t.Errorf("the log is %v with %v, the nodes are %v", got.Events, got.Heads, got.Nodes)
		}
	}
}

func TestWrongNames(t *testing.T) {
	for setting, n := range map[string]Names{
		"WithConsumerCheckpointsTable": {ConsumerCheckpoints: strings.Repeat("x", 58)}, // too long for a suffix
		"WithEventsTable":              {Events: "a b"},
		"WithWorkerNodesTable":         {WorkerNodes: "a.b.c"},
	} {
		if _, err := Parse(n.OrDefault(), "With"); err == nil || !strings.Contains(err.Error(), setting) {
			t.Errorf("%s is wrong: %v", setting, err)
		}
	}
	if _, err := Parse(Names{}, ""); err == nil || !strings.Contains(err.Error(), "LeaderElectionTable: the table name is empty") {
		t.Errorf("no names at all: %v", err)
	}
}
