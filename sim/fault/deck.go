package fault

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Card is something that a deck deals that many times, on average.
type Card[T any] struct {
	What  T
	Times float64
}

// Deck deals cards. Each card comes up its number of times before the deck begins again.
type Deck[T any] struct {
	dice  *rand.Rand
	cards []Card[T]
	left  []T
}

// NewDeck returns a deck that is shuffled by dice.
func NewDeck[T any](dice *rand.Rand, cards []Card[T]) *Deck[T] {
	return &Deck[T]{dice: dice, cards: cards}
}

// Deal draws the next card. It returns false if the dice draw none.
func (d *Deck[T]) Deal() (what T, ok bool) {
	if len(d.left) == 0 {
		d.shuffle()
	}
	if len(d.left) == 0 {
		return what, false
	}
	what, d.left = d.left[0], d.left[1:]
	return what, true
}

func (d *Deck[T]) shuffle() {
	for _, c := range d.cards {
		whole, part := math.Modf(c.Times)
		if d.dice.Float64() < part {
			whole++
		}
		d.left = append(d.left, slices.Repeat([]T{c.What}, int(whole))...)
	}
	d.dice.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
}

// Dice gives each actor random numbers of its own. What one actor draws does not depend on when
// others draw.
func Dice(seed uint64, actor string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(actor)) // never fails
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// OneOf draws one of some values.
func OneOf[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// Between draws a duration in whole tens of milliseconds.
func Between(r *rand.Rand, low, high time.Duration) time.Duration {
	const step = 10 * time.Millisecond
	return low + time.Duration(r.Int64N(int64((high-low)/step)+1))*step
}

// Chance draws whether something happens that has probability p.
func Chance(r *rand.Rand, p float64) bool { return r.Float64() < p }
