package coord

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// What a worker's row says about it as its protocol. The lowest number among
// the living binds the leader.
const (
	protocolHeartbeat = 1 // it sends heartbeats
	protocolLock      = 2 // through the session that holds its lock
)

// confirmation is the least time between the two looks that find a lock free:
// a worker whose connection was cut needs less for the next.
const confirmation = 200 * time.Millisecond

// node is a worker's row, as one look shows it.
type node struct {
	ID       uuid.UUID `json:"id"`
	Units    []string  `json:"units"`
	Protocol int       `json:"protocol"`
	Fresh    bool      `json:"fresh"`  // the last heartbeat is younger than HeartbeatTimeout
	Proven   bool      `json:"proven"` // and was sent in this life of the server
	Held     bool      `json:"-"`      // its lock is held
}

// watch says since when locks are seen free at each look. It is worth nothing
// beyond its session.
type watch map[uuid.UUID]time.Time

// judge returns what is seen now, the workers that are alive, in order of id,
// and whether it takes another look to tell.
func (w watch) judge(nodes []node, now time.Time) (next watch, alive []Member, again bool) {
	byLock := !slices.ContainsFunc(nodes, func(n node) bool { return n.Fresh && n.Protocol < protocolLock })
	next = watch{}
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
			if now.Sub(since) >= confirmation {
				continue
			}
			again = true
		}
		alive = append(alive, Member{ID: n.ID, Units: n.Units})
	}
	slices.SortFunc(alive, func(a, b Member) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return next, alive, again
}

// Dead reports whether what a worker has begun may be ended: the worker has no
// row, its last heartbeat is older than HeartbeatTimeout, or its lock is free
// and the next heartbeat overdue. A worker may look like it for a moment, so
// ask twice, a while apart. It takes a Register that succeeded.
//
// The leader is quicker to give a worker's units to others, since that does no
// harm to one that lives and has lost its connection.
func (c *Coordinator) Dead(ctx context.Context, db *sql.DB, id uuid.UUID) (dead bool, err error) {
	return c.dead(ctx, db, id, c.cfg.grace())
}

// grace is the age of a heartbeat by which a worker that lives, and has lost
// its connection, has another one and sends the next.
func (c Config) grace() time.Duration {
	return min(c.HeartbeatInterval+c.timeLimit(), c.HeartbeatTimeout)
}

// dead is Dead with another grace.
func (c *Coordinator) dead(ctx context.Context, db *sql.DB, id uuid.UUID, grace time.Duration) (dead bool, err error) {
	home := c.home.Load()
	if home == nil {
		return false, errors.New("coord: Dead was called before Register")
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.timeLimit())
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, fmt.Errorf("coord: take a connection: %w", err)
	}
	err = conn.QueryRowContext(ctx, c.sql.dead, c.cfg.args(*home, id.String(), protocolLock, home.workerKey(id), grace.Microseconds())...).Scan(&dead)
	if err != nil {
		pgdriver.Discard(conn) // it may lead to a standby
		return false, fmt.Errorf("coord: look whether worker %s is dead: %w", id, err)
	}
	return dead, conn.Close()
}
