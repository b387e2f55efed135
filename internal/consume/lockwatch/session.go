package lockwatch

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// sessionState is the statement that returns whether session $1 is busy, and whose locks it
// waits for. Without a row the session has ended. Where the server does not track
// activities, the state is hidden, and the session counts as busy.
const sessionState = `
SELECT coalesce(a.state, '') NOT LIKE 'idle%', coalesce((
	SELECT json_agg(json_build_object(
		'pid', b.pid,
		'application', coalesce(o.application_name, ''),
		'state', coalesce(o.state, ''),
		'age', coalesce(extract(epoch FROM clock_timestamp() - o.state_change), 0)
	) ORDER BY b.pid)
	FROM (SELECT DISTINCT unnest(pg_blocking_pids(a.pid))) AS b(pid)
	LEFT JOIN pg_stat_activity AS o ON o.pid = b.pid), '[]')::text
FROM pg_stat_activity AS a WHERE a.pid = $1::bigint`

// Session is what the server does for a connection that waits for an answer.
type Session struct {
	Busy     bool // runs a statement or waits for a lock
	blockers []blocker
	prepared progress.Prepared // holds the consumer's row; one of blockers, if those are known
}

// blocker is a session whose lock another session waits for.
type blocker struct {
	PID         int     `json:"pid"` // 0: a prepared transaction
	Application string  `json:"application"`
	State       string  `json:"state"` // empty: hidden from this role
	Age         float64 `json:"age"`   // of the state, in seconds
}

// querySession returns what the session with a pid does.
func querySession(ctx context.Context, q store.Querier, pid int64) (s Session, err error) {
	var blockers string
	err = q.QueryRowContext(ctx, sessionState, pid).Scan(&s.Busy, &blockers)
	if errors.Is(err, sql.ErrNoRows) {
		return Session{}, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(blockers), &s.blockers)
	}
	return s, err
}

// blockedBy describes the sessions that hold the lock, each with its remedy.
func (s Session) blockedBy() string {
	var all []string
	for _, b := range s.blockers {
		remedy := frontier.Holder{PID: b.PID}.Remedy()
		switch {
		case b.PID == 0 && s.prepared != (progress.Prepared{}):
			continue // described below
		case b.PID == 0:
			all = append(all, "a prepared transaction (see pg_prepared_xacts): COMMIT PREPARED or ROLLBACK PREPARED it")
		case b.State == "":
			all = append(all, fmt.Sprintf("pid %d: %s", b.PID, remedy))
		default:
			since := time.Duration(b.Age * float64(time.Second)).Round(time.Second)
			all = append(all, fmt.Sprintf("pid %d (application_name %q, %s for %v): %s", b.PID, b.Application, b.State, since, remedy))
		}
	}
	if s.prepared != (progress.Prepared{}) {
		all = append(all, s.prepared.String())
	}
	return strings.Join(all, "; ")
}

// waits reports whether the session is known to wait for a lock.
func (s Session) waits() bool { return len(s.blockers) > 0 || s.prepared != (progress.Prepared{}) }

// Sessions reads what the server does for connections that wait for an answer.
type Sessions struct {
	DB     store.Querier                                     // takes other connections
	Failed func(ctx context.Context, task string, err error) // reports a task that failed, unless err is nil or ctx has ended
}

// Poll returns what a session does, as read on another connection.
func (q Sessions) Poll(ctx context.Context, pid int64) (s Session, known bool) {
	limited, cancel := context.WithTimeout(ctx, PollLimit)
	defer cancel()
	s, err := querySession(limited, q.DB, pid)
	q.Failed(ctx, "inspect session", err)
	return s, err == nil
}
