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
	Fresh    bool `json:"fresh"`  // the last heartbeat is younger than HeartbeatTimeout
	Proven   bool `json:"proven"` // and of the present incarnation
	Held     bool `json:"-"`      // its lock is held
}

// Watch says since when locks are seen free at each look. It is worth nothing
// beyond its session.
type Watch map[uuid.UUID]time.Time

// Judge returns what is seen now, the workers that are alive, in order of id,
// and whether it takes another look to tell.
func (w Watch) Judge(nodes []Node, now time.Time) (next Watch, alive []Node, again bool) {
	byLock := !slices.ContainsFunc(nodes, func(n Node) bool { return n.Fresh && n.Protocol < ProtocolLock })
	next = Watch{}
	for _, n := range nodes {
		if !n.Fresh {
			continue
		}
		if byLock && n.Proven && !n.Held {
			since, free := w[n.ID]
			if !free {
				since = now
			}
			next[n.ID] = since
			if now.Sub(since) >= Confirmation {
				continue
			}
			again = true
		}
		alive = append(alive, n)
	}
	slices.SortFunc(alive, func(a, b Node) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return next, alive, again
}
