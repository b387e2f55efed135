package ops

import "testing"

// A merge of two units lowers the sum of all revisions, and batches raise the sum again. A
// decision from before the merge must not match then.
func TestRevisionOfUnitsNeverRepeats(t *testing.T) {
	own := revised{"c", 7}
	split := revisionOf([]revised{own, {"c#000-3ff", 20}, {"c#400-7ff", 20}, {"c#800-fff", 20}})
	merged := revisionOf([]revised{own, {"c#000-7ff", 40}, {"c#800-fff", 20}})
	moved := revisionOf([]revised{own, {"c#000-3ff", 19}, {"c#400-7ff", 21}, {"c#800-fff", 20}})
	if split == merged || split == moved || merged == moved {
		t.Errorf("%d, %d and %d: the same for different units", split, merged, moved)
	}
	if n := revisionOf([]revised{own}); n != 7 {
		t.Errorf("%d for a consumer that is not split, want its own", n)
	}
	for _, n := range []int64{split, merged, moved} {
		if n < 0 || n >= 1<<53 {
			t.Errorf("%d is no whole number in every JSON", n)
		}
	}
}
