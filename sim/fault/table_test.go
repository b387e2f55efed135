package fault

import "testing"

func TestActorsDrawApart(t *testing.T) {
	if Dice(1, "writer 1").Uint64() == Dice(1, "writer 2").Uint64() {
		t.Error("two actors draw the same")
	}
	if Dice(1, "writer 1").Uint64() == Dice(2, "writer 1").Uint64() {
		t.Error("two seeds draw the same")
	}
}
