package fault

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// Every card comes up as often as it is in the deck before any comes again.
func TestDeck(t *testing.T) {
	d := NewDeck(rand.New(rand.NewPCG(1, 2)), []Card[string]{{"kill", 2}, {"stop", 1}, {"promote", 0}})
	n := map[string]int{}
	for range 30 {
		what, ok := d.Deal()
		if !ok {
			t.Fatal("the deck ran out")
		}
		n[what]++
	}
	if want := map[string]int{"kill": 20, "stop": 10}; !maps.Equal(n, want) {
		t.Errorf("dealt %v, want %v", n, want)
	}
	if what, ok := NewDeck(rand.New(rand.NewPCG(1, 2)), []Card[string]{{"promote", 0}}).Deal(); ok {
		t.Errorf("dealt %q from an empty deck", what)
	}
}

// A part of a card comes up now and then.
func TestDeckWithAPart(t *testing.T) {
	d := NewDeck(rand.New(rand.NewPCG(1, 2)), []Card[string]{{"kill", 1.5}, {"stop", 4}})
	n := map[string]int{}
	for range 5500 {
		what, _ := d.Deal()
		n[what]++
	}
	if n["kill"] < 1300 || n["kill"] > 1700 {
		t.Errorf("dealt %v, want 1500 times kill, about", n)
	}
}
