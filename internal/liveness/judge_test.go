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

// liveNode returns a live worker with a proven heartbeat and a held lock.
func liveNode() Node {
	return Node{ID: uuid.New(), Profile: Profile{Names: []string{"u"}}, Protocol: ProtocolLock, Fresh: true, Proven: true, Held: true}
}

func TestJudge(t *testing.T) {
	begin := time.Now()
	for name, test := range map[string]struct {
		second     func(n *Node)
		after      time.Duration // before the second poll
		alive      bool
		again      bool
		neighbours func(n *Node)
	}{
		"held":                             {second: func(n *Node) { n.Held = true }, after: time.Hour, alive: true},
		"free twice":                       {after: Confirmation},
		"free twice, but too soon":         {after: Confirmation - 1, alive: true, again: true},
		"silent":                           {second: func(n *Node) { n.Held, n.Fresh = true, false }, after: Confirmation},
		"not of this incarnation":          {second: func(n *Node) { n.Proven = false }, after: time.Hour, alive: true},
		"with a worker without locks":      {neighbours: func(n *Node) { n.Protocol = ProtocolHeartbeat }, after: time.Hour, alive: true},
		"with a dead worker without locks": {neighbours: func(n *Node) { n.Protocol, n.Fresh = ProtocolHeartbeat, false }, after: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			n, neighbour := liveNode(), liveNode()
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
				t.Errorf("again is %v, want %v", again, test.again)
			}
		})
	}
}

// A heartbeat in the future counts as sent when it is first read. The next heartbeat, the
// worker's death and another leader's first poll begin a new count.
func TestJudgeHeartbeatsInTheFuture(t *testing.T) {
	const timeout = 30 * time.Second
	n := liveNode()
	n.Timeout = timeout.Microseconds()
	var w Watch
	now := time.Now()
	for i, poll := range []struct {
		after time.Duration
		ahead string
		alive bool
	}{
		{0, "2042", true}, {timeout - 1, "2042", true}, {1, "2042", false}, {time.Hour, "2042", false},
		{0, "2043", true}, {timeout - 1, "2043", true}, {1, "2044", true},
		{timeout, "", true}, {time.Hour, "", true}, {0, "2044", true}, {timeout, "infinity", true}, {timeout, "infinity", false},
	} {
		now = now.Add(poll.after)
		n.Ahead = poll.ahead
		var alive []Node
		w, alive, _ = w.Judge([]Node{n}, now)
		if got := len(alive) == 1; got != poll.alive {
			t.Errorf("poll %d: alive %v", i, got)
		}
		if found := w.Ahead([]Node{n}, now); len(found) == 1 == poll.alive {
			t.Errorf("poll %d: heartbeats to set back are %v", i, found)
		}
	}
}

// For every history, only two kinds of workers are dead: silent workers, and workers whose
// lock was free with a proven heartbeat at all polls of a period. The second kind exists only
// if all workers have locks.
func TestJudgeRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
		var w Watch
		now := time.Now()
		since := map[uuid.UUID]time.Time{}
		for range rapid.IntRange(1, 20).Draw(t, "polls") {
			now = now.Add(drawDuration(t, "pause", 0, Confirmation))
			var nodes []Node
			for _, id := range ids {
				// Mostly without a fault, so that some histories are long enough.
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

// Grace lets a live worker connect again and send its next heartbeat. It does not exceed
// HeartbeatTimeout.
func TestGrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{HeartbeatInterval: drawDuration(t, "interval", 10*time.Millisecond, time.Hour)}
		c.HeartbeatTimeout = drawDuration(t, "timeout", 2*c.HeartbeatInterval, 24*time.Hour)
		if got := c.Grace(); got > c.HeartbeatTimeout || got < c.HeartbeatTimeout && got < c.HeartbeatInterval+time.Second {
			t.Errorf("the grace is %v", got)
		}
	})
}
