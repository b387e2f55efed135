package frontier

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/store"
	"pgregory.net/rapid"
)

func TestMachineStaleHolder(t *testing.T) {
	s := newScript(t)
	s.tail(0, 3, store.Range{First: 1, Last: 1}, store.Range{First: 3, Last: 3})
	s.scan(active("a"))
	s.now = s.now.Add(time.Minute - ms)
	s.tail(0, 3, store.Range{First: 3, Last: 3})
	s.scan(active("a"))
	s.published(1, 1)
	if newlyStale := s.m.takeNewlyStale(); len(newlyStale) > 0 {
		t.Fatalf("stale too early: %+v", newlyStale)
	}
	s.now = s.now.Add(time.Second)
	s.tail(0, 3, store.Range{First: 3, Last: 3})
	s.scan(active("a"))
	s.tail(0, 5, store.Range{First: 3, Last: 3}, store.Range{First: 5, Last: 5}) // the read of the missing positions, at once
	s.published(1, 3, store.Range{First: 2, Last: 2})
	if newlyStale := s.m.takeNewlyStale(); len(newlyStale) != 1 || !newlyStale[0].Stale || newlyStale[0].VirtualTransaction != "a" {
		t.Fatalf("want a to be stale: %+v", newlyStale)
	}
	// a delays no other fence, but may own missing positions there.
	s.tail(5*ms, 5, store.Range{First: 5, Last: 5})
	s.scan(active("a"))
	s.tail(0, 5, store.Range{First: 5, Last: 5})
	s.published(1, 5, store.Range{First: 2, Last: 2}, store.Range{First: 4, Last: 4})
	if newlyStale := s.m.takeNewlyStale(); len(newlyStale) > 0 {
		t.Fatalf("reported twice: %+v", newlyStale)
	}
	if b := s.m.blocked(); len(b) != 1 || b[0].VirtualTransaction != "a" {
		t.Fatalf("want a to be blocking: %+v", b)
	}
	s.tail(5*ms, 5)
	s.scan()
	s.published(5, 5)
	if b := s.m.blocked(); len(b) > 0 {
		t.Fatalf("nothing is blocked any more: %+v", b)
	}
}

func TestMachineOneReadClosesTwoFences(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.scan(active("a"))
	s.tail(5*ms, 4, store.Range{First: 2, Last: 2}, store.Range{First: 4, Last: 4})
	s.scan(active("a"))
	s.now = s.now.Add(time.Hour)
	s.tail(0, 4, store.Range{First: 2, Last: 2}, store.Range{First: 4, Last: 4})
	s.scan(active("a"))
	s.tail(0, 4, store.Range{First: 2, Last: 2}, store.Range{First: 4, Last: 4})
	s.published(0, 4, store.Range{First: 1, Last: 1}, store.Range{First: 3, Last: 3})
	s.expect(readTail, 5*ms)
}

// Far behind, the machine passes doubts with several reads, one after another.
func TestMachinePassesDoubtsInParts(t *testing.T) {
	s := newScript(t)
	full := func(runs ...store.Range) {
		t.Helper()
		s.expect(readTail, 0)
		s.m.onTail(s.now, tailRead{token: "t", last: 90_000, runs: runs, full: true})
	}
	full(store.Range{First: 2, Last: 1_001})
	s.expect(readHead, 0)
	s.m.onHead(s.now, headRead{token: "t", last: 90_000, head: 90_000})
	s.scan(old(active("a")))
	full(store.Range{First: 2, Last: 4_000}, store.Range{First: 4_002, Last: 10_002})
	s.published(0, 10_002, store.Range{First: 1, Last: 1}, store.Range{First: 4_001, Last: 4_001})
	full(store.Range{First: 10_003, Last: 20_002})
	s.published(0, 20_002, store.Range{First: 1, Last: 1}, store.Range{First: 4_001, Last: 4_001})
	s.tail(0, 90_000, store.Range{First: 20_004, Last: 90_000})
	s.published(0, 90_000, store.Range{First: 1, Last: 1}, store.Range{First: 4_001, Last: 4_001}, store.Range{First: 20_003, Last: 20_003})
	s.expect(readTail, 5*ms)
}

func TestStrictMachineWaits(t *testing.T) {
	s := newScript(t, func(r *rules) { r.strict = true })
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.scan(old(active("a")))
	for range 5 {
		s.now = s.now.Add(time.Hour)
		s.tail(0, 2, store.Range{First: 2, Last: 2})
		s.scan(old(active("a")))
		s.published(0, 0)
	}
	if newlyStale := s.m.takeNewlyStale(); len(newlyStale) != 1 {
		t.Fatalf("want it reported once: %+v", newlyStale)
	}
	s.tail(160*ms, 2, store.Range{First: 2, Last: 2})
	s.scan()
	s.published(2, 2)
}

// The age of a transaction counts only at the first fence. Later, an old transaction may have
// drawn its position recently.
func TestMachineOldTransactionIsStaleAtTheFirstFence(t *testing.T) {
	s := newScript(t)
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.scan(old(active("a")))
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.published(0, 2, store.Range{First: 1, Last: 1})
	s.tail(5*ms, 4, store.Range{First: 4, Last: 4})
	s.scan(old(active("a")), old(active("b")))
	s.tail(5*ms, 4, store.Range{First: 4, Last: 4})
	s.scan(old(active("a")), old(active("b")))
	s.published(0, 2, store.Range{First: 1, Last: 1})
}

// stale makes a holder stale over positions 1 to 9, with 10 visible. It leaves the machine
// after the read of the missing positions.
func stale(t *testing.T, h sighting) *script {
	s := newScript(t)
	s.tail(0, 10, store.Range{First: 10, Last: 10})
	s.scan(old(h))
	s.tail(0, 10, store.Range{First: 10, Last: 10})
	s.published(0, 10, store.Range{First: 1, Last: 9})
	return s
}

func TestMachineNarrows(t *testing.T) {
	s := stale(t, idle("a", "x"))
	// a shows the same state after the tail that read the last value 10.
	s.tail(5*ms, 15, store.Range{First: 12, Last: 15})
	s.scan(idle("a", "x"))
	s.published(0, 15, store.Range{First: 1, Last: 9}) // so a owns nothing above 10, and 11 is void
	s.expect(readTail, 5*ms)
}

func TestMachineNarrowsDoubts(t *testing.T) {
	s := stale(t, active("a"))
	s.tail(5*ms, 12, store.Range{First: 12, Last: 12})
	s.scan(active("a"))
	s.tail(0, 12, store.Range{First: 12, Last: 12})
	s.published(0, 12, store.Range{First: 1, Last: 9}, store.Range{First: 11, Last: 11})
	// As if a tail had read 7 while a was idle.
	s.m.holders["a"].last, s.m.holders["a"].haveLast, s.m.holders["a"].Rest = 7, true, "x"
	s.tail(5*ms, 12)
	s.scan(idle("a", "x"))
	s.published(0, 12, store.Range{First: 1, Last: 7})
	if b := s.m.blocked(); len(b) != 1 {
		t.Fatalf("want a to be blocking: %+v", b)
	}
}

// The machine publishes a Value if only a doubt changed.
func TestMachinePublishesNarrowedDoubt(t *testing.T) {
	s := stale(t, active("a"))
	s.m.holders["a"].last, s.m.holders["a"].haveLast, s.m.holders["a"].Rest = 7, true, "x"
	s.tail(5*ms, 10)
	s.scan(idle("a", "x"))
	s.published(0, 10, store.Range{First: 1, Last: 7})
}

// The machine publishes a Value after an owner ended, even if another owner keeps the same
// positions in doubt. The events of the ended owner are visible now.
func TestMachinePublishesAfterAnOwnerEnded(t *testing.T) {
	s := newScript(t)
	s.tail(0, 3, store.Range{First: 3, Last: 3})
	s.scan(old(active("a")), old(active("b")))
	s.tail(0, 3, store.Range{First: 3, Last: 3})
	s.published(0, 3, store.Range{First: 1, Last: 2})
	before := s.m.value
	s.tail(5*ms, 3)
	s.scan(old(active("b")))
	if s.published(0, 3, store.Range{First: 1, Last: 2}); s.m.value == before {
		t.Fatal("no Value was published after a ended")
	}
	before = s.m.value
	s.tail(5*ms, 3)
	s.scan(old(active("b")))
	if s.m.value != before {
		t.Fatal("a Value was published although no holder ended")
	}
}

// A holder that can no longer own a position in doubt is not listed as blocking.
func TestMachineNarrowedBelowItsDoubtsBlocksNothing(t *testing.T) {
	s := stale(t, active("a"))
	s.m.holders["a"].last, s.m.holders["a"].haveLast, s.m.holders["a"].Rest = 0, true, "x"
	s.tail(5*ms, 10)
	s.scan(idle("a", "x"))
	s.published(10, 10)
	if b := s.m.blocked(); len(b) > 0 {
		t.Fatalf("want none: %+v", b)
	}
}

func TestMachineDiscardsLastValue(t *testing.T) {
	for _, between := range []sighting{idle("a", "y"), active("a")} {
		s := stale(t, idle("a", "x"))
		s.tail(5*ms, 12, store.Range{First: 12, Last: 12})
		s.scan(between) // a ran a statement: 11 may be a's
		s.tail(0, 12, store.Range{First: 12, Last: 12})
		s.published(0, 12, store.Range{First: 1, Last: 9}, store.Range{First: 11, Last: 11})
	}
}

func atRest(id string) sighting { return sighting{ID: id, Rest: "prepared"} }

// A last value that was read before a scan showed the transaction prepared does not narrow it.
// The transaction may have drawn in between.
func TestMachineNarrowsPrepared(t *testing.T) {
	s := stale(t, idle("a", "x"))
	s.tail(5*ms, 12, store.Range{First: 12, Last: 12})
	s.scan(atRest("a"))
	s.tail(0, 12, store.Range{First: 12, Last: 12})
	s.published(0, 12, store.Range{First: 1, Last: 9}, store.Range{First: 11, Last: 11})
	s.tail(5*ms, 14, store.Range{First: 14, Last: 14})
	s.scan(atRest("a"))
	s.published(0, 14, store.Range{First: 1, Last: 9}, store.Range{First: 11, Last: 11})
}

// Servers before 13.5 and 14.1 rename a prepared transaction. The transaction may own
// positions of the holders that ended, and nothing that is drawn later.
func TestMachineNarrowsRenamed(t *testing.T) {
	s := stale(t, idle("3/7", "x"))
	s.tail(5*ms, 12, store.Range{First: 12, Last: 12})
	s.scan(atRest("-1/700"))
	s.published(0, 10, store.Range{First: 1, Last: 9})
	s.now = s.now.Add(time.Minute)
	s.tail(0, 12, store.Range{First: 12, Last: 12})
	s.scan(atRest("-1/700"))
	s.tail(0, 12, store.Range{First: 12, Last: 12})
	s.published(0, 12, store.Range{First: 1, Last: 9}, store.Range{First: 11, Last: 11})
	s.tail(5*ms, 14, store.Range{First: 14, Last: 14})
	s.scan(atRest("-1/700"))
	s.published(0, 14, store.Range{First: 1, Last: 9}, store.Range{First: 11, Last: 11})
	s.tail(5*ms, 14)
	s.scan()
	s.published(14, 14)
}

func TestMachineHarborLag(t *testing.T) {
	s := newScript(t, func(r *rules) { r.harborLag = 3 })
	s.tail(0, 4, store.Range{First: 2, Last: 4})
	s.scan(old(active("a")))
	s.tail(0, 4, store.Range{First: 2, Last: 4})
	s.published(0, 1, store.Range{First: 1, Last: 1})
	for _, pause := range []time.Duration{5, 5, 10, 20} { // no progress: the scans back off
		s.tail(pause*ms, 4, store.Range{First: 2, Last: 4})
		s.scan(old(active("a")))
		s.tail(0, 4, store.Range{First: 2, Last: 4})
	}
	s.tail(40*ms, 6, store.Range{First: 2, Last: 6})
	s.published(0, 3, store.Range{First: 1, Last: 1})
	s.scan()
	s.published(6, 6) // the doubt has ended, and the lag with it
}

func TestMachineRenamedHolder(t *testing.T) {
	s := stale(t, active("3/7"))
	s.tail(5*ms, 10)
	s.scan(sighting{ID: "-1/700"})
	s.published(0, 10, store.Range{First: 1, Last: 9})
	s.tail(5*ms, 10)
	s.scan()
	s.published(10, 10)
}

// The machine lists exactly the holders that keep a fence open or may own positions in doubt,
// oldest first.
func TestMachineListsBlockers(t *testing.T) {
	blocked := func(s *script, want ...string) {
		t.Helper()
		var got []string
		for _, h := range s.m.blocked() {
			got = append(got, fmt.Sprint(h.VirtualTransaction, " ", h.Age))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("blocked by %v, want %v", got, want)
		}
	}
	aged := func(id string, age float64) sighting { h := active(id); h.Age = age; return h }
	s := newScript(t)
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.scan(aged("a", 1), aged("b", 90), aged("c", 2.5), aged("d", 1))
	blocked(s, "b 1m30s", "c 2.5s", "a 1s", "d 1s")
	s.tail(5*ms, 2, store.Range{First: 2, Last: 2})
	s.scan(aged("b", 91), aged("d", 2), aged("e", 7)) // e began after the fence
	blocked(s, "b 1m31s", "d 2s")
	s.tail(10*ms, 2, store.Range{First: 2, Last: 2})
	s.scan(aged("b", 92), aged("e", 8))
	s.tail(0, 2, store.Range{First: 2, Last: 2})
	s.published(0, 2, store.Range{First: 1, Last: 1})
	blocked(s, "b 1m32s")
}

func TestRemedy(t *testing.T) {
	for _, c := range []struct {
		h    Holder
		want string
	}{
		{Holder{PID: 1}, "let its application end it, or SELECT pg_terminate_backend(1)"},
		{Holder{GID: "g"}, "COMMIT PREPARED or ROLLBACK PREPARED 'g'"},
		{Holder{}, "COMMIT PREPARED or ROLLBACK PREPARED, see pg_prepared_xacts"},
	} {
		if got := c.h.Remedy(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.h, got, c.want)
		}
	}
}

// TestAttributeDecidesEachPosition compares attribute with the positions that each holder may
// own.
func TestAttributeDecidesEachPosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var owners []*holder
		for range rapid.IntRange(0, 4).Draw(t, "owners") {
			owners = append(owners, &holder{
				ended:    rapid.Bool().Draw(t, "ended"),
				narrowed: rapid.Bool().Draw(t, "narrowed"),
				last:     rapid.Int64Range(0, 10).Draw(t, "last"),
			})
		}
		given := slices.Clone(owners)
		missing := store.Range{First: rapid.Int64Range(1, 8).Draw(t, "first"), Last: 8}
		pieces := attribute(missing, owners)
		if !slices.Equal(owners, given) {
			t.Fatalf("the owners were modified: %v, now %v", given, owners)
		}
		for position := int64(0); position <= 12; position++ {
			var want, got []*holder
			for _, h := range owners {
				if missing.Holds(position) && !h.ended && (!h.narrowed || h.last >= position) {
					want = append(want, h)
				}
			}
			for _, piece := range pieces {
				if piece.Holds(position) {
					got = append(got, piece.owners...)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("position %d of %v: owners %v, want %v", position, missing, got, want)
			}
		}
	})
}
