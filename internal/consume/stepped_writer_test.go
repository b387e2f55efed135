package consume

import (
	"database/sql"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/either"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// aggregates are the writers' aggregates. The first letter is the type.
var aggregates = []string{"A1", "B1", "A2", "B2", "A3"}

// writer is a transaction that appends.
type writer struct {
	tx    either.Tx // nil: none
	conn  *sql.Conn
	n     int    // number among all transactions
	pid   int    // of its backend
	gid   string // if it is prepared
	holds map[string]bool
	// drawn are the positions of its events.
	drawn []int64
	saves []int // length of drawn at its savepoints
	// reserved is a position that it has drawn for an aggregate before it locked the
	// aggregate, as some other stores do.
	reserved  int64
	aggregate string
}

func (s *stage) writer(n int) *writer { return &s.writers[n%len(s.writers)] }

// begun returns the n-th of the writers in a transaction, or nil if there is none.
func (s *stage) begun(n int) *writer {
	var all []*writer
	for i := range s.writers {
		if s.writers[i].tx != nil {
			all = append(all, &s.writers[i])
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[n%len(all)]
}

// eventID returns a new id, and the same one when the script is played again.
func (s *stage) eventID() (id uuid.UUID) {
	s.events++
	binary.BigEndian.PutUint32(id[:], s.events)
	return id
}

// free returns the aggregates to which w can append without waiting.
func (s *stage) free(w *writer) (free []string) {
	for _, a := range aggregates {
		taken := false
		for _, other := range s.transactions() {
			taken = taken || other != w && (other.holds[a] || other.aggregate == a)
		}
		if !taken {
			free = append(free, a)
		}
	}
	return free
}

// transactions returns all open transactions, including prepared ones.
func (s *stage) transactions() (all []*writer) {
	for i := range s.writers {
		all = append(all, &s.writers[i])
	}
	return append(all, s.prepared...)
}

// begin begins a transaction if w has none, every other time one of pgx.
func (s *stage) begin(w *writer) {
	if w.tx != nil {
		return
	}
	conn, err := s.own.Conn(s.ctx)
	s.must(err)
	s.txs++
	tx, err := either.Begin(s.ctx, conn, s.txs%2 == 0)
	s.must(err)
	*w = writer{tx: tx, conn: conn, n: s.txs, holds: map[string]bool{}}
	s.must(tx.QueryRow(s.ctx, `SELECT pg_backend_pid()`).Scan(&w.pid))
	s.record(s.name(w), "", history.Begin, history.Transaction{Tx: w.n, Native: either.Native(w.tx)})
}

// tellEnd records how a transaction has ended.
func (s *stage) recordEnd(who string, w *writer, kind history.Kind) {
	s.record(who, "", kind, history.Transaction{Tx: w.n, Positions: history.Spans(w.drawn)})
}

// in runs a statement of a writer.
func (s *stage) in(w *writer, statement string) { s.must(w.tx.Exec(s.ctx, statement)) }

// free returns the connection of a transaction that has ended.
func (w *writer) free() {
	_ = w.conn.Close()
	*w = writer{}
}

// append appends one or two events to an aggregate that no other transaction holds.
func (s *stage) append(who, what int) {
	w := s.writer(who)
	free := s.free(w)
	if w.reserved != 0 {
		s.appendReserved(w, free)
		return
	}
	if len(free) == 0 {
		return
	}
	to := free[what%len(free)]
	events := make([]store.Event, 1+what%3/2)
	for i := range events {
		events[i] = store.Event{AggregateType: to[:1], AggregateID: to, EventType: "happened", EventID: s.eventID()}
	}
	s.begin(w)
	result, err := either.Do(w.tx, func(tx *sql.Tx) (store.AppendResult, error) {
		return storepostgres.NewStore(nil).Append(s.ctx, tx, store.Any(), events)
	})
	s.must(err)
	w.holds[to] = true
	w.drawn = append(w.drawn, result.GlobalPositions...)
	s.record(s.name(w), "", drew, draw{to, history.Spans(result.GlobalPositions), true})
}

// reserve draws a position for an aggregate that another transaction has locked. Until the
// position is used, no other transaction appends to the aggregate.
func (s *stage) reserve(who, what int) {
	w := s.writer(who)
	if w.reserved != 0 {
		return
	}
	var locked []string
	for _, a := range aggregates {
		holders := 0
		for _, other := range s.transactions() {
			switch {
			case other == w && other.holds[a], other.aggregate == a:
				holders = 2
			case other.holds[a]:
				holders++
			}
		}
		if holders == 1 {
			locked = append(locked, a)
		}
	}
	if len(locked) == 0 {
		return
	}
	s.begin(w)
	w.aggregate = locked[what%len(locked)]
	s.must(w.tx.QueryRow(s.ctx, `SELECT nextval('events_global_position_seq')`).Scan(&w.reserved))
	s.record(s.name(w), "", drew, draw{w.aggregate, history.Spans([]int64{w.reserved}), false})
}

func (s *stage) appendReserved(w *writer, free []string) {
	if !slices.Contains(free, w.aggregate) {
		return // still locked
	}
	err := w.tx.Exec(s.ctx, `
WITH head AS (
	INSERT INTO aggregate_heads AS h (aggregate_type, aggregate_id, aggregate_version) VALUES ($1::text, $2::text, 1)
	ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET aggregate_version = h.aggregate_version + 1
	RETURNING aggregate_version
)
INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
SELECT $3::bigint, $1::text, $2::text, aggregate_version, $4::uuid, 'happened', '' FROM head`,
		w.aggregate[:1], w.aggregate, w.reserved, s.eventID().String())
	s.must(err)
	s.record(s.name(w), "", drew, draw{w.aggregate, history.Spans([]int64{w.reserved}), true})
	s.saw("reserved")
	w.holds[w.aggregate] = true
	w.drawn = append(w.drawn, w.reserved)
	w.reserved, w.aggregate = 0, ""
}

// burn draws many positions that no event will use.
func (s *stage) burn(who, what int) {
	w := s.writer(who)
	if w.reserved != 0 {
		return
	}
	s.begin(w)
	var all history.Span
	s.must(w.tx.QueryRow(s.ctx, `
SELECT min(p), max(p) FROM (SELECT nextval('events_global_position_seq') AS p FROM generate_series(1, $1::int)) AS drawn`,
		10*(1+what%4)).Scan(&all.First, &all.Last))
	s.record(s.name(w), "", drew, draw{Positions: []history.Span{all}})
}

// handOn commits a transaction for whose lock another one waits. The other one then appends
// and commits at once.
func (s *stage) handOn(who, _ int) {
	for i := range s.writers {
		w := s.writer(who + i)
		if w.reserved == 0 {
			continue
		}
		for n, other := range s.transactions() {
			switch {
			case other == w || !other.holds[w.aggregate]:
			case n < len(s.writers):
				s.endWriter(other, true)
			default:
				s.endPrepared(n-len(s.writers), true)
			}
		}
		s.appendReserved(w, s.free(w))
		s.endWriter(w, true)
		return
	}
}

// handOnMeanwhile calls handOn while a loop is in the middle of a step, for example between
// two reads.
func (s *stage) handOnMeanwhile(who, what int) {
	l := s.choose(who)
	for range 1 + what%4 {
		s.advance(l, false)
	}
	s.handOn(who, what)
}

func (s *stage) savepoint(who, _ int) {
	if w := s.begun(who); w != nil {
		s.in(w, fmt.Sprintf("SAVEPOINT s%d", len(w.saves)))
		w.saves = append(w.saves, len(w.drawn))
		s.record(s.name(w), "", savepointSet, nil)
	}
}

func (s *stage) rollbackTo(who, _ int) {
	w := s.begun(who)
	if w == nil || len(w.saves) == 0 {
		return
	}
	last := len(w.saves) - 1
	s.in(w, fmt.Sprintf("ROLLBACK TO SAVEPOINT s%d", last))
	w.drawn, w.saves = w.drawn[:w.saves[last]], w.saves[:last]
	s.record(s.name(w), "", undone, nil)
}

func (s *stage) commit(who, what int)   { s.endSome(who, what, true) }
func (s *stage) rollback(who, what int) { s.endSome(who, what, false) }

// endSome ends a transaction. The first writer stays open until it is stale.
func (s *stage) endSome(who, what int, commit bool) {
	w := s.begun(who)
	if w != nil && (w != &s.writers[0] || what%2 == 0) {
		s.endWriter(w, commit)
	}
}

func (s *stage) endWriter(w *writer, commit bool) {
	if commit {
		s.appear(w)
		s.must(w.tx.Commit())
		if either.Native(w.tx) {
			s.saw("native")
		}
		s.recordEnd(s.name(w), w, history.Committed)
	} else {
		s.must(w.tx.Rollback())
		s.recordEnd(s.name(w), w, history.RolledBack)
	}
	w.free()
}

func (s *stage) prepare(who, _ int) {
	w := s.begun(who)
	if w == nil || w.reserved != 0 {
		return
	}
	s.gids++
	w.gid = fmt.Sprintf("g%d", s.gids)
	s.in(w, "PREPARE TRANSACTION '"+w.gid+"'")
	_ = w.tx.Rollback() // the transaction has ended already
	s.recordEnd(s.name(w), w, history.PreparedToEnd)
	s.saw("prepared")
	gone := *w
	gone.tx = nil
	s.prepared = append(s.prepared, &gone)
	w.free()
}

func (s *stage) commitPrepared(who, _ int)   { s.endPrepared(who, true) }
func (s *stage) rollbackPrepared(who, _ int) { s.endPrepared(who, false) }

func (s *stage) endPrepared(n int, commit bool) {
	if len(s.prepared) == 0 {
		return
	}
	n %= len(s.prepared)
	w := s.prepared[n]
	how, ended := "ROLLBACK PREPARED", history.RolledBack
	if commit {
		how, ended = "COMMIT PREPARED", history.Committed
		s.appear(w)
	}
	s.exec(fmt.Sprintf("%s '%s'", how, w.gid))
	s.recordEnd(w.gid, w, ended)
	s.prepared = slices.Delete(s.prepared, n, n+1)
}

// terminate ends the backend of a writer.
func (s *stage) terminate(who, _ int) {
	if w := s.begun(who); w != nil {
		s.record(s.name(w), "", history.FaultInjected, history.Injection{Fault: writerEnded})
		s.end(`pid = $1::int`, w.pid)
		s.forget(w)
		s.saw("terminated")
	}
}

// forget drops a writer whose backend is gone.
func (s *stage) forget(w *writer) {
	s.recordEnd(s.name(w), w, history.RolledBack)
	_ = w.tx.Rollback() // the connection is broken
	w.free()
}

// appear is called when the events of a transaction are about to become visible. No
// frontier may have declared them void before. A value under the token of an earlier
// incarnation does not count. A frontier may read rows of this incarnation before it
// notices, and no guard accepts such a value.
func (s *stage) appear(w *writer) {
	s.committed += int64(len(w.drawn))
	today := s.token()
	for _, p := range w.drawn {
		for _, v := range s.published {
			if !strings.HasPrefix(v.Token, today+" ") {
				continue
			}
			s.saw("promises")
			if p <= v.Safe && len(v.InDoubt(p-1, p)) == 0 {
				s.wrong("position %d is committed after the frontier said that it never would: %+v", p, s.viewOf(v))
			}
		}
	}
}

// token returns the random part of this incarnation, or "" before there is one.
func (s *stage) token() (token string) {
	err := s.own.QueryRowContext(s.ctx, `SELECT coalesce((SELECT token::text FROM consumer_checkpoints_token), '')`).Scan(&token)
	s.must(err)
	return token
}

// name returns a writer's name in the history.
func (s *stage) name(w *writer) string {
	for i := range s.writers {
		if w == &s.writers[i] {
			return fmt.Sprintf("writer %d", i)
		}
	}
	return "prepared " + w.gid
}
