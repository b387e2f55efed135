package partitions

import (
	"testing"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
)

// Units are merged if they cover the target's slots, are at one position, belong to this
// worker, and run.
func TestCanMerge(t *testing.T) {
	for name, c := range map[string]struct {
		change func(parts []progress.Part) []progress.Part
		want   bool
	}{
		"all of it":         {func(parts []progress.Part) []progress.Part { return parts }, true},
		"none":              {func([]progress.Part) []progress.Part { return nil }, false},
		"one is missing":    {func(parts []progress.Part) []progress.Part { return parts[1:] }, false},
		"one is paused":     {func(parts []progress.Part) []progress.Part { parts[2].Paused = true; return parts }, false},
		"one is another's":  {func(parts []progress.Part) []progress.Part { parts[0].Mine = false; return parts }, false},
		"one is behind":     {func(parts []progress.Part) []progress.Part { parts[1].Position--; return parts }, false},
		"one selects more":  {func(parts []progress.Part) []progress.Part { parts[2].Scope = `{}`; return parts }, false},
		"one is further":    {func(parts []progress.Part) []progress.Part { parts[2].Position++; return parts }, false},
		"one is no unit":    {func(parts []progress.Part) []progress.Part { parts[1].Unit = "c#5"; return parts }, false},
		"one is there more": {func(parts []progress.Part) []progress.Part { return append(parts, parts[2]) }, false},
	} {
		var parts []progress.Part
		for _, r := range partition.Cut(3) {
			parts = append(parts, progress.Part{Unit: partition.Name("c", r), Position: 9, Mine: true})
		}
		if got := canMerge(partition.All, c.change(parts)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
