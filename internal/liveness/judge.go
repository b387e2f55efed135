package liveness

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Protocols that a worker's row can record. Session locks count only if every live worker has
// ProtocolLock.
const (
	ProtocolHeartbeat = 1 // the worker sends heartbeats
	ProtocolLock      = 2 // the worker sends heartbeats through the session that holds its lock
)

// Confirmation is the minimum time between the two polls that find a lock free. A worker whose
// connection was cut needs less time to connect again.
const Confirmation = 200 * time.Millisecond

// Profile holds facts about a worker that never change.
type Profile struct {
	Names   []string        `json:"names"`
	Details json.RawMessage `json:"details"` // null: no details
}

// Node is a worker's row, as one poll read it.
type Node struct {
	ID uuid.UUID `json:"id"`
	Profile
	Protocol int  `json:"protocol"`
	Fresh    bool `json:"fresh"`    // the last heartbeat is younger than the worker's HeartbeatTimeout
	Proven   bool `json:"proven"`   // the last heartbeat is of the current incarnation
	Held     bool `json:"-"`        // the worker's lock is held
	Draining bool `json:"draining"` // the worker is draining, or an operator has asked it to; only with details

	Ahead   string `json:"ahead"`   // the last heartbeat, if it lies in the future
	Timeout int64  `json:"timeout"` // the worker's HeartbeatTimeout, in microseconds
}

// Watch records since when each lock has been free at every poll. It also records since when
// each heartbeat has been in the future. It is valid in one session only.
//
// A heartbeat in the future shows that the server's clock was set back. Its age is unknown, so
// it counts as sent when it is first read. A live worker sends another heartbeat within its
// HeartbeatInterval.
type Watch struct {
	free  map[uuid.UUID]time.Time
	ahead map[heartbeat]time.Time
}

// heartbeat is a heartbeat that lies in the future.
type heartbeat struct {
	ID uuid.UUID `json:"id"`
	At string    `json:"at"`
}

// Judge returns the next Watch and the workers that are alive, in order of id. again reports
// whether another poll is needed soon to decide.
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

// seen copies to next since when what has been seen at each poll, and returns for how long.
func seen[K comparable](before, next map[K]time.Time, what K, now time.Time) time.Duration {
	since, was := before[what]
	if !was {
		since = now
	}
	next[what] = since
	return now.Sub(since)
}

// Ahead returns the heartbeats that have been in the future for the HeartbeatTimeout of their
// workers, as [Watch.Judge] found.
func (w Watch) Ahead(nodes []Node, now time.Time) (all []heartbeat) {
	for _, n := range nodes {
		h := heartbeat{n.ID, n.Ahead}
		if since, is := w.ahead[h]; is && now.Sub(since) >= time.Duration(n.Timeout)*time.Microsecond {
			all = append(all, h)
		}
	}
	return all
}
