package console

import (
	"fmt"
	"math"
)

// drawing is the log as a picture: from its beginning on the left to the head on the right. The
// distance to the head is drawn by its logarithm, so that one event is seen beside millions.
type drawing struct {
	Settled, Safe float64 // where the settled part and the safe part end
	Doubts        []mark
	Ticks         []mark
	Flag          bool // transactions are open that may hold it back
	Text          string
}

type mark struct {
	X, Width float64
	Text     string
	Class    string
}

const (
	drawnWidth = 1000
	tickWidth  = 4 // consumers that are nearer to each other share a tick
)

// Drawing draws the snapshot.
func (s *snapshot) Drawing() drawing {
	at := scale(0, s.Log.Head)
	d := drawing{Settled: at(s.Log.Settled), Flag: s.Log.Open > 0}
	d.Safe = at(s.Log.Safe)
	for _, g := range s.Doubts {
		from := at(g.First - 1)
		d.Doubts = append(d.Doubts, mark{X: from, Width: max(at(g.Last)-from, 3), Text: fmt.Sprintf("%s: in doubt from %s to %s", g.Consumer, thousands(g.First), thousands(g.Last))})
	}
	d.Ticks = s.ticks(at)
	d.Text = fmt.Sprintf("The log: settled up to %s, safe up to %s, head at %s, %s in doubt, %s. %s.", thousands(s.Log.Settled), thousands(s.Log.Safe), thousands(s.Log.Head),
		count(len(s.Doubts), "range"), count(s.Log.Open, "open transaction"), s.Summary())
	return d
}

// ticks draws where the consumers are. The number of ticks is bounded.
func (s *snapshot) ticks(at func(position int64) float64) (all []mark) {
	type tick struct {
		x     float64
		class string
	}
	of := map[tick][]string{}
	var order []tick
	for _, c := range s.Consumers {
		if c.RenamedTo != "" {
			continue
		}
		stands := s.State(c)
		k := tick{math.Round(at(c.Position)/tickWidth) * tickWidth, stands.Class}
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], fmt.Sprintf("%s at %s, %s", c.Name, thousands(c.Position), stands.Word))
	}
	for _, k := range order {
		all = append(all, mark{X: k.x, Class: k.class, Text: some(of[k], "")})
	}
	return all
}

// scale returns where a position is drawn.
func scale(least, head int64) func(position int64) float64 {
	span := math.Log1p(float64(max(head-least, 0)))
	return func(position int64) float64 {
		away := math.Log1p(float64(max(head-max(position, least), 0)))
		if span == 0 {
			return drawnWidth
		}
		return math.Round(10*drawnWidth*(1-away/span)) / 10
	}
}
