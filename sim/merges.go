package sim

import (
	"bytes"
	"context"
	"net"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/sim/history"
)

// watchMerges makes config's connections write down which merges the worker refuses. It
// says nothing of them itself, as it tries again: it locks the parts, and rolls back
// although no statement has failed.
func (s Scenario) watchMerges(config *pgx.ConnConfig, h *history.History, who string) {
	for _, c := range s.Scope {
		if !c.Partitioned {
			continue
		}
		next := config.AfterNetConnect
		config.AfterNetConnect = func(ctx context.Context, settings *pgconn.Config, raw net.Conn) (net.Conn, error) {
			w := &mergeConn{Conn: raw, scenario: s, consumer: c.Name, refused: func(why string) {
				h.Add(who, c.Name, history.MergeRefused, history.Refusal{Why: why})
			}}
			if next == nil {
				return w, nil
			}
			return next(ctx, settings, w)
		}
	}
}

// mergeConn follows the transactions that change the layout of a consumer.
type mergeConn struct {
	net.Conn
	scenario Scenario
	consumer string
	refused  func(why string)

	mu    sync.Mutex
	stage stage
	end   []byte // of what the server has said
}

// stage is how far such a transaction has come.
type stage int

const (
	outside     stage = iota
	begun             // the layout is locked
	partsLocked       // and the parts of a merge
	openRead          // the parts were fit to be merged; what they watch was read
	written           // or it is a split
)

var (
	rollbackMessage = []byte("Q\x00\x00\x00\x0drollback\x00") // what pgx sends for tx.Rollback
	inTransaction   = []byte("Z\x00\x00\x00\x05T")            // ends an answer in a transaction in which nothing has failed
)

func (c *mergeConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	why := c.sends(b)
	c.mu.Unlock()
	n, err := c.Conn.Write(b)
	if why != "" && err == nil {
		c.refused(why)
	}
	return n, err
}

// sends takes note of what is sent. It returns why a merge is refused by that, or "".
func (c *mergeConn) sends(b []byte) (why string) {
	switch {
	case !executes(b):
	case c.scenario.locksLayout(b):
		c.stage = begun
	case c.stage == outside:
	case bytes.Contains(b, commitMessage):
		c.stage = outside
	case bytes.Contains(b, rollbackMessage):
		if bytes.Equal(c.end, inTransaction) {
			why = map[stage]string{partsLocked: history.RefusedParts, openRead: history.RefusedEvent}[c.stage]
		}
		c.stage = outside
	case bytes.Contains(b, []byte(`["`+c.consumer+`#`)): // the parts
		c.stage = min(c.stage+1, written)
	case c.stage == begun && bytes.Contains(b, []byte(c.consumer)): // one unit
		c.stage = written
	}
	return why
}

func (c *mergeConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end = append(c.end, b[:n]...)
	c.end = c.end[max(0, len(c.end)-len(inTransaction)):]
	return n, err
}
