package oracle

import (
	"slices"
	"testing"

	"github.com/pgfrontier/worker/sim/history"
)

// splitRun are samples of a consumer that is split and merged, and comes to rest in
// two parts.
func splitRun() *history.Evidence {
	at := func(name string, checkpoint, revision int64) history.Standing {
		return history.Standing{Consumer: name, Checkpoint: checkpoint, Revision: revision}
	}
	return &history.Evidence{
		Consumers: []history.Scope{{Name: "c", Partitioned: true}, {Name: "cc"}},
		Samples: [][]history.Standing{
			{at("cc", 9, 9)},
			{at("c", 1, 1), at("cc", 9, 9)},
			{at("c#000-7ff", 1, 2), at("c#800-fff", 3, 4)},
			{at("c#000-7ff", 2, 3), at("c#800-bff", 3, 5), at("c#c00-fff", 4, 6)},
			{at("c", 4, 7)},
			{at("c", 5, 8)},
		},
		Rest: history.Rest{Head: 6, Partitions: 2, Standings: []history.Standing{at("c#000-7ff", 6, 9), at("c#800-fff", 6, 9)}},
	}
}

func TestPartitionsOfASoundRunHold(t *testing.T) {
	e := splitRun()
	if f := partitions(e); !f.Holds() {
		t.Errorf("%+v", f)
	}
	f := Finding{}
	f.restOfParts(e.Rest, "c")
	if !f.Holds() {
		t.Errorf("%+v", f)
	}
}

func TestBrokenPartitionsAreFound(t *testing.T) {
	for name, spoil := range map[string]func(e *history.Evidence){
		"a unit is missing":             func(e *history.Evidence) { e.Samples[3] = slices.Delete(e.Samples[3], 1, 2) },
		"the last unit is missing":      func(e *history.Evidence) { e.Samples[3] = e.Samples[3][:2] },
		"two units of a key":            func(e *history.Evidence) { e.Samples[3][1].Consumer = "c#700-bff" },
		"the own row beside the units":  func(e *history.Evidence) { e.Samples[2] = append(e.Samples[2], e.Samples[1][0]) },
		"a name that no unit has":       func(e *history.Evidence) { e.Samples[3][1].Consumer = "c#8-bff" },
		"a split that falls back":       func(e *history.Evidence) { e.Samples[3][1].Checkpoint = 2 },
		"a merge at the lower position": func(e *history.Evidence) { e.Samples[4][0].Checkpoint = 3 },
		"a child at revision 0":         func(e *history.Evidence) { e.Samples[2][0].Revision = 0 },
		"a merge at a part's revision":  func(e *history.Evidence) { e.Samples[4][0].Revision = 6 },
		"another layout than wanted":    func(e *history.Evidence) { e.Rest.Partitions = 3 },
	} {
		e := splitRun()
		if spoil(e); partitions(e).Holds() {
			t.Errorf("%s: not found", name)
		}
	}
	for name, spoil := range map[string]func(r *history.Rest){
		"not at the head": func(r *history.Rest) { r.Standings[1].Checkpoint = 5 },
		"in doubt":        func(r *history.Rest) { r.Standings[0].Open = []history.Span{{First: 1, Last: 1}} },
		"a part missing":  func(r *history.Rest) { r.Standings = r.Standings[:1] },
	} {
		e := splitRun()
		spoil(&e.Rest)
		f := Finding{}
		if f.restOfParts(e.Rest, "c"); f.Holds() {
			t.Errorf("at rest, %s: not found", name)
		}
	}
}
