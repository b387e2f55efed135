package events

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
)

// watchMerges makes config's connections record which merges the worker refuses. The worker does
// not report them, since it tries again. In such a merge it locks the parts, and rolls back
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

	mu   sync.Mutex
	step mergeStep
	end  []byte // of what the server has said
}

// mergeStep is how far such a transaction has come.
type mergeStep int

const (
	outside     mergeStep = iota
	begun                 // the layout is locked
	partsLocked           // and the parts of a merge
	openRead              // the parts can be merged; their open ranges were read
	written               // or it is a split
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

// sends records a sent message. It returns why the message shows that a merge is refused, or "".
func (c *mergeConn) sends(b []byte) (why string) {
	switch {
	case !network.Executes(b):
	case c.scenario.locksLayout(b):
		c.step = begun
	case c.step == outside:
	case bytes.Contains(b, network.CommitMessage):
		c.step = outside
	case bytes.Contains(b, rollbackMessage):
		if bytes.Equal(c.end, inTransaction) {
			why = map[mergeStep]string{partsLocked: history.RefusedParts, openRead: history.RefusedEvent}[c.step]
		}
		c.step = outside
	case bytes.Contains(b, []byte(`["`+c.consumer+`#`)): // the parts
		c.step = min(c.step+1, written)
	case c.step == begun && bytes.Contains(b, []byte(c.consumer)): // one unit
		c.step = written
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

// locksLayout recognises the statement with which a split or a merge begins, by its
// parameters.
func (s Scenario) locksLayout(b []byte) bool {
	return network.Executes(b) && bytes.Contains(b, []byte("15000")) && slices.ContainsFunc(s.Scope, func(c history.Scope) bool {
		return c.Partitioned && bytes.Contains(b, []byte(c.Name))
	})
}
