package liveness

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
)

// What a worker's row says about it as its protocol. The lowest number among
// the living binds who judges.
const (
	ProtocolHeartbeat = 1 // it sends heartbeats
	ProtocolLock      = 2 // through the session that holds its lock
)

// Confirmation is the least time between the two looks that find a lock free:
// a worker whose connection was cut needs less for the next.
const Confirmation = 200 * time.Millisecond

// Said is what a worker says of itself, which never changes.
type Said struct {
	Names   []string        `json:"names"`
	Details json.RawMessage `json:"details"` // null: it has not said any
}

// Node is a worker's row, as one look shows it.
type Node struct {
	ID uuid.UUID `json:"id"`
	Said
	Protocol int  `json:"protocol"`
	Fresh    bool `json:"fresh"`    // the last heartbeat is younger than the worker's HeartbeatTimeout
	Proven   bool `json:"proven"`   // and of the present incarnation
	Held     bool `json:"-"`        // its lock is held
	Draining bool `json:"draining"` // it finishes what it has, or an operator has asked it to; only where there are details

	Ahead   string `json:"ahead"`   // the last heartbeat, if that lies in the future
	Timeout int64  `json:"timeout"` // the worker's HeartbeatTimeout, in microseconds
}

// Watch says since when locks are seen free, and the same heartbeats in the future, at each
// look. It is worth nothing beyond its session.
//
// A heartbeat that lies in the future shows that the server's clock was set back. It does not
// show how old it is, so it counts as sent when it is seen first: a worker that lives sends
// another within its HeartbeatInterval.
type Watch struct {
	free  map[uuid.UUID]time.Time
	ahead map[heartbeat]time.Time
}

// heartbeat is one of a worker that lies in the future.
type heartbeat struct {
	ID uuid.UUID `json:"id"`
	At string    `json:"at"`
}

// Judge returns what is seen now, the workers that are alive, in order of id,
// and whether it takes another look to tell.
func (w Watch) Judge(nodes []Node, now time.Time) (next Watch, alive []Node, again bool) {
	byLock := !slices.ContainsFunc(nodes, func(n Node) bool { return n.Fresh && n.Protocol < ProtocolLock })
	next = Watch{map[uuid.UUID]time.Time{}, map[heartbeat]time.Time{}}
	for _, n := range nodes {
		if !n.Fresh {
			continue
		}
		if n.Ahead != "" && seen(w.ahead, next.ahead, heartbeat{n.ID, n.Ahead}, now) >= time.Duration(n.Timeout)*time.Microsecond {
			continue
		}
		if byLock && n.Proven && !n.Held {
			if seen(w.free, next.free, n.ID, now) >= Confirmation {
				continue
			}
			again = true
		}
		alive = append(alive, n)
	}
	slices.SortFunc(alive, func(a, b Node) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return next, alive, again
}

// seen notes in next since when something is seen at each look, and returns for how long.
func seen[K comparable](before, next map[K]time.Time, what K, now time.Time) time.Duration {
	since, was := before[what]
	if !was {
		since = now
	}
	next[what] = since
	return now.Sub(since)
}

// Ahead returns the heartbeats of nodes that have been in the future for the HeartbeatTimeout
// of their workers, as [Watch.Judge] has found.
func (w Watch) Ahead(nodes []Node, now time.Time) (all []heartbeat) {
	for _, n := range nodes {
		h := heartbeat{n.ID, n.Ahead}
		if since, is := w.ahead[h]; is && now.Sub(since) >= time.Duration(n.Timeout)*time.Microsecond {
			all = append(all, h)
		}
	}
	return all
}
