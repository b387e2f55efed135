package main

import "testing"

func TestProve(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 0)
	s.expect(t, exitRefused, words("prove nobody"), "it has no row in the checkpoints table")
	s.expect(t, exitDone, words("prove c"), "nothing is proven of c yet: it has no receipts")
	s.work(t)
	s.expect(t, exitDone, words("wait c 3"))
	s.expect(t, exitDone, words("prove c"), "proven: c has handled each of 3 events from position 1 to 3 once")
	s.Exec(t, `DELETE FROM events WHERE global_position = 2`)
	s.expect(t, exitRefused, words("prove c"), "NOT proven: of the events from position 1 to 3, c has handled 0 once, but", "2 ", "the log does not have it any more")
	data := s.expect(t, exitRefused, words("prove c -o json")).data(t)
	if all := data["unproven"].([]any); data["holds"] != false || len(all) != 1 || all[0].(map[string]any)["first"] != 2.0 {
		t.Errorf("printed %v", data)
	}
}
