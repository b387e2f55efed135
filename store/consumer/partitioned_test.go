package consumer_test

import (
	"strings"
	"testing"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

func TestPartitions(t *testing.T) {
	of := func(e store.PersistedEvent) string { return e.EventType }
	for what, c := range map[string]struct {
		p    consumer.Partitions
		want string // part of what is wrong
	}{
		"one":                  {consumer.Partitions{Count: 1}, ""},
		"the most":             {consumer.Partitions{Count: 256, Key: consumer.ByKey("customer", of)}, ""},
		"none":                 {consumer.Partitions{}, "a Count of 0, allowed is 1 to 256"},
		"too many":             {consumer.Partitions{Count: 257}, "257"},
		"no function":          {consumer.Partitions{Count: 1, Key: consumer.ByKey("customer", nil)}, `ByKey("customer") has no function`},
		"no name":              {consumer.Partitions{Count: 1, Key: consumer.ByKey(" ", of)}, "ByKey has no name"},
		"a long name":          {consumer.Partitions{Count: 1, Key: consumer.ByKey(strings.Repeat("x", 101), of)}, "longer than 100 bytes"},
		"a name of no letters": {consumer.Partitions{Count: 1, Key: consumer.ByKey("a\nb", of)}, "control characters"},
	} {
		err := c.p.Check()
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
	e := store.PersistedEvent{AggregateID: "a", EventType: "t"}
	if k := (consumer.Key{}); k.Name() != "" || k.Of(e) != "a" {
		t.Errorf("the key of an aggregate is %q, %q", k.Name(), k.Of(e))
	}
	if k := consumer.ByKey("kind", of); k.Name() != "kind" || k.Of(e) != "t" {
		t.Errorf("%q, %q", k.Name(), k.Of(e))
	}
}
