package liveness

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func drawDuration(t *rapid.T, label string, from, to time.Duration) time.Duration {
	return time.Duration(rapid.Int64Range(int64(from), int64(to)).Draw(t, label))
}

// aNode is a worker with everything in order.
func aNode() Node {
	return Node{ID: uuid.New(), Said: Said{Names: []string{"u"}}, Protocol: ProtocolLock, Fresh: true, Proven: true, Held: true}
}

func TestJudge(t *testing.T) {
	begin := time.Now()
	for name, test := range map[string]struct {
		second     func(n *Node)
		after      time.Duration // before the second look
		alive      bool
		again      bool
		neighbours func(n *Node)
	}{
		"held":                       {second: func(n *Node) { n.Held = true }, after: time.Hour, alive: true},
		"free twice":                 {after: Confirmation},
		"free twice, but too soon":   {after: Confirmation - 1, alive: true, again: true},
		"silent":                     {second: func(n *Node) { n.Held, n.Fresh = true, false }, after: Confirmation},
		"not of this life":           {second: func(n *Node) { n.Proven = false }, after: time.Hour, alive: true},
		"with an old worker around":  {neighbours: func(n *Node) { n.Protocol = ProtocolHeartbeat }, after: time.Hour, alive: true},
		"with an old dead one there": {neighbours: func(n *Node) { n.Protocol, n.Fresh = ProtocolHeartbeat, false }, after: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			n, neighbour := aNode(), aNode()
			n.Held = false
			if test.neighbours != nil {
				test.neighbours(&neighbour)
			}
			w, _, _ := Watch{}.Judge([]Node{n, neighbour}, begin)
			if test.second != nil {
				test.second(&n)
			}
			_, alive, again := w.Judge([]Node{n, neighbour}, begin.Add(test.after))
			if got := slices.ContainsFunc(alive, func(m Node) bool { return m.ID == n.ID }); got != test.alive {
				t.Errorf("alive: %v, want %v", got, test.alive)
			}
			if again != test.again {
				t.Errorf("wants to look again soon: %v, want %v", again, test.again)
			}
		})
	}
}

// A heartbeat that lies in the future counts as sent when it is seen first. The next one,
// the worker's death and another leader's first look begin anew.
func TestJudgeHeartbeatsInTheFuture(t *testing.T) {
	const timeout = 30 * time.Second
	n := aNode()
	n.Timeout = timeout.Microseconds()
	var w Watch
	now := time.Now()
	for i, look := range []struct {
		after time.Duration
		ahead string
		alive bool
	}{
		{0, "2042", true}, {timeout - 1, "2042", true}, {1, "2042", false}, {time.Hour, "2042", false},
		{0, "2043", true}, {timeout - 1, "2043", true}, {1, "2044", true},
		{timeout, "", true}, {time.Hour, "", true}, {0, "2044", true}, {timeout, "infinity", true}, {timeout, "infinity", false},
	} {
		now = now.Add(look.after)
		n.Ahead = look.ahead
		var alive []Node
		w, alive, _ = w.Judge([]Node{n}, now)
		if got := len(alive) == 1; got != look.alive {
			t.Errorf("look %d: alive %v", i, got)
		}
		if found := w.Ahead([]Node{n}, now); len(found) == 1 == look.alive {
			t.Errorf("look %d: to be set back are %v", i, found)
		}
	}
}

// Whatever is seen in whatever order: dead is only who is silent, or whose
// lock was free in a proven life at all looks for a while, in a cluster of
// workers that all have locks.
func TestJudgeRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
		var w Watch
		now := time.Now()
		since := map[uuid.UUID]time.Time{}
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			now = now.Add(drawDuration(t, "pause", 0, Confirmation))
			var nodes []Node
			for _, id := range ids {
				// Mostly in order, or no history would ever be long enough.
				n := Node{ID: id, Protocol: ProtocolLock, Fresh: true, Proven: true}
				n.Held = rapid.IntRange(0, 3).Draw(t, "held") == 0
				n.Fresh = rapid.IntRange(0, 9).Draw(t, "stale") > 0
				n.Proven = rapid.IntRange(0, 9).Draw(t, "unproven") > 0
				if rapid.IntRange(0, 19).Draw(t, "old") == 0 {
					n.Protocol = ProtocolHeartbeat
				}
				if rapid.IntRange(0, 9).Draw(t, "absent") > 0 {
					nodes = append(nodes, n)
				}
			}
			allLocks := true
			for _, n := range nodes {
				allLocks = allLocks && (n.Protocol == ProtocolLock || !n.Fresh)
			}
			for _, id := range ids {
				i := slices.IndexFunc(nodes, func(n Node) bool { return n.ID == id })
				if i < 0 || !allLocks || nodes[i].Held || !nodes[i].Fresh || !nodes[i].Proven {
					delete(since, id)
				} else if _, ok := since[id]; !ok {
					since[id] = now
				}
			}
			var alive []Node
			w, alive, _ = w.Judge(nodes, now)
			for _, n := range nodes {
				from, free := since[n.ID]
				want := n.Fresh && (!free || now.Sub(from) < Confirmation)
				if got := slices.ContainsFunc(alive, func(m Node) bool { return m.ID == n.ID }); got != want {
					t.Fatalf("%+v is alive: %v, want %v", n, got, want)
				}
			}
		}
	})
}

// The grace lets a worker that lives connect again and send its next heartbeat,
// and spares no batch longer than HeartbeatTimeout.
func TestGrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{HeartbeatInterval: drawDuration(t, "interval", 10*time.Millisecond, time.Hour)}
		c.HeartbeatTimeout = drawDuration(t, "timeout", 2*c.HeartbeatInterval, 24*time.Hour)
		if got := c.Grace(); got > c.HeartbeatTimeout || got < c.HeartbeatTimeout && got < c.HeartbeatInterval+time.Second {
			t.Errorf("the grace is %v", got)
		}
	})
}
