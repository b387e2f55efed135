package tables

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

func TestNames(t *testing.T) {
	for name, test := range map[string]struct {
		n                                           store.Names
		checkpoints, deadLetters, token, heads, log string // as Parse returns them
		jobs, history                               string
	}{
		"the zero value":        {store.Names{}, "consumer_checkpoints", "consumer_dead_letters", "consumer_checkpoints_token", "aggregate_heads", "events", "jobs", "jobs_history"},
		"a schema":              {store.Names{Schema: "App"}, "app.consumer_checkpoints", "app.consumer_dead_letters", "app.consumer_checkpoints_token", "app.aggregate_heads", "app.events", "app.jobs", "app.jobs_history"},
		"a prefix":              {store.Names{Prefix: "x_"}, "x_consumer_checkpoints", "x_consumer_dead_letters", "x_consumer_checkpoints_token", "x_aggregate_heads", "x_events", "x_jobs", "x_jobs_history"},
		"explicit names win":    {store.Names{Schema: "app", Prefix: "x_", ConsumerCheckpoints: "infra.progress", Events: "facts", Jobs: "infra.work"}, "infra.progress", "infra.progress_dead_letters", "infra.progress_token", "app.x_aggregate_heads", "app.facts", "infra.work", "infra.work_history"},
		"a name of its own":     {store.Names{ConsumerCheckpoints: "progress"}, "progress", "progress_dead_letters", "progress_token", "aggregate_heads", "events", "jobs", "jobs_history"},
		"a default in a schema": {store.Names{ConsumerCheckpoints: "infra.consumer_checkpoints"}, "infra.consumer_checkpoints", "infra.consumer_dead_letters", "infra.consumer_checkpoints_token", "aggregate_heads", "events", "jobs", "jobs_history"},
	} {
		got, err := Parse(test.n)
		j, err2 := ParseJobs(test.n)
		if err != nil || err2 != nil {
			t.Errorf("%s: %v, %v", name, err, err2)
		}
		is := []string{got.Checkpoints.String(), got.DeadLetters.String(), got.Token.String(), got.Heads.String(), got.Events.String(), j.Jobs.String(), j.History.String()}
		want := []string{test.checkpoints, test.deadLetters, test.token, test.heads, test.log, test.jobs, test.history}
		if !reflect.DeepEqual(is, want) {
			t.Errorf("%s: got %v, want %v", name, is, want)
		}
	}
}

func TestWrongNames(t *testing.T) {
	for field, n := range map[string]store.Names{
		"Names.ConsumerCheckpoints": {ConsumerCheckpoints: strings.Repeat("x", 58)}, // too long for a suffix
		"Names.Events":              {Events: "a b"},
		"Names.WorkerNodes":         {WorkerNodes: "a.b.c"},
		"Names.Schema":              {Schema: "a.b"},
		"Names.Prefix":              {Prefix: "1_"},
		"Names.LeaderElection":      {Prefix: "p" + strings.Repeat("x", 50)},
	} {
		if _, err := Parse(n); err == nil || !strings.Contains(err.Error(), field+": ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s is wrong: %v", field, err)
		}
	}
	for says, n := range map[string]store.Names{
		`Names.Events and Names.AggregateHeads both name "x"`:                                                       {Events: "x", AggregateHeads: "X"},
		`Names.ConsumerGapSkips and Names.ConsumerCheckpoints with _dead_letters both name "consumer_dead_letters"`: {ConsumerGapSkips: "consumer_dead_letters"},
	} {
		if _, err := Parse(n); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %s", n, err, says)
		}
	}
	if _, err := ParseJobs(store.Names{Jobs: "a b"}); err == nil || !strings.Contains(err.Error(), `Names.Jobs: "a b"`) {
		t.Errorf("a wrong name of the table of jobs: %v", err)
	}
}

// Every field of Tables and Jobs is a table, and its tag "of" names a field of store.Names. Each
// field of store.Names with a default is the name of a table.
func TestTagsAreComplete(t *testing.T) {
	used := map[string]bool{}
	for _, of := range []reflect.Type{reflect.TypeFor[Tables](), reflect.TypeFor[Jobs]()} {
		for i := range of.NumField() {
			f := of.Field(i)
			if f.Type != reflect.TypeFor[ident.Table]() || f.Tag.Get("of") == "" {
				t.Errorf("%s.%s has no table or no tag", of, f.Name)
			}
			used[f.Tag.Get("of")] = used[f.Tag.Get("of")] || f.Tag.Get("add") == ""
		}
	}
	n := store.Names{}
	for _, c := range ConfiguredOf(&n) {
		*c.Name = "set_" + c.Default
	}
	for i, v := 0, reflect.ValueOf(n); i < v.NumField(); i++ {
		name := v.Type().Field(i).Name
		if is := v.Field(i).String() != ""; is != used[name] {
			t.Errorf("%s is configured: %t, and the name of a table: %t", name, is, used[name])
		}
	}
	if got := Given(store.Names{Schema: "app", Jobs: "work"}); got != "Schema: app, Jobs: work" {
		t.Errorf("given are %s", got)
	}
	if got := ConfiguredOf(&n)[2]; got.Key != "worker-nodes" || got.Default != "worker_nodes" {
		t.Errorf("the third is %+v", got)
	}
}
