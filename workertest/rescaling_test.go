package workertest

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/ops"
)

// The next split of a storm waits until the last one is done, and until a part has handled events.
func TestRescalingWaits(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 5)`)
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	r := rescaling{gale: &gale{storm: &storm{name: "c"}}, operator: o}
	for i, s := range []struct {
		units []int64 // their positions
		steps int     // so far
	}{
		{nil, 1},                 // into four
		{nil, 1},                 // the workers have not split it
		{[]int64{5, 5, 5, 5}, 1}, // no part has handled an event
		{[]int64{5, 6, 5, 5}, 2}, // into eight
		{[]int64{9, 9, 9, 9}, 2}, // the workers have not split the parts
	} {
		c := ops.Consumer{Position: 5}
		for _, p := range s.units {
			c.Units = append(c.Units, ops.Unit{Position: p})
		}
		r.last = time.Time{}
		if r.step(t.Context(), c); r.n != s.steps || r.refused {
			t.Errorf("%d: %d steps, want %d; refused: %t", i, r.n, s.steps, r.refused)
		}
	}
}
