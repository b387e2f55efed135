package consume

import (
	"database/sql"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// aggregates are what the writers append to; the first letter is the type.
var aggregates = []string{"A1", "B1", "A2", "B2", "A3"}

// writer is a transaction that appends.
type writer struct {
	tx    *sql.Tx // nil: none
	n     int     // of all transactions
	pid   int     // of its backend
	gid   string  // if it is prepared
	holds map[string]bool
	// drawn are the positions of its events.
	drawn []int64
	saves []int // how many there were at its savepoints
	// reserved is a position that it has drawn for an aggregate before it
	// locked that, as other stores than ours do.
	reserved  int64
	aggregate string
}

func (s *stage) writer(n int) *writer { return &s.writers[n%len(s.writers)] }

// begun returns the n-th of the writers in a transaction, nil if there is none.
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

// eventID is another one each time, and the same when the script is played
// again.
func (s *stage) eventID() (id uuid.UUID) {
	s.events++
	binary.BigEndian.PutUint32(id[:], s.events)
	return id
}

// free returns the aggregates that nobody else keeps w from appending to.
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

// transactions are all that are open, prepared ones included.
func (s *stage) transactions() (all []*writer) {
	for i := range s.writers {
		all = append(all, &s.writers[i])
	}
	return append(all, s.prepared...)
}

func (s *stage) begin(w *writer) {
	if w.tx != nil {
		return
	}
	tx, err := s.own.BeginTx(s.ctx, nil)
	s.must(err)
	s.txs++
	*w = writer{tx: tx, n: s.txs, holds: map[string]bool{}}
	s.must(tx.QueryRowContext(s.ctx, `SELECT pg_backend_pid()`).Scan(&w.pid))
	s.tell(s.name(w), "", history.Begin, history.Transaction{Tx: w.n})
}

// tellEnd tells how a transaction has ended.
func (s *stage) tellEnd(who string, w *writer, kind history.Kind) {
	s.tell(who, "", kind, history.Transaction{Tx: w.n, Positions: history.Spans(w.drawn)})
}

// in runs a statement of a writer.
func (s *stage) in(w *writer, statement string) {
	_, err := w.tx.ExecContext(s.ctx, statement)
	s.must(err)
}

// append appends one or two events to an aggregate that nobody else holds.
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
	result, err := storepostgres.NewStore(nil).Append(s.ctx, w.tx, store.Any(), events)
	s.must(err)
	w.holds[to] = true
	w.drawn = append(w.drawn, result.GlobalPositions...)
	s.tell(s.name(w), "", drew, draw{to, history.Spans(result.GlobalPositions), true})
}

// reserve draws a position for an aggregate that another transaction has
// locked. Until it is used, nobody else gets in between.
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
	s.must(w.tx.QueryRowContext(s.ctx, `SELECT nextval('events_global_position_seq')`).Scan(&w.reserved))
	s.tell(s.name(w), "", drew, draw{w.aggregate, history.Spans([]int64{w.reserved}), false})
}

func (s *stage) appendReserved(w *writer, free []string) {
	if !slices.Contains(free, w.aggregate) {
		return // still locked
	}
	_, err := w.tx.ExecContext(s.ctx, `
WITH head AS (
	INSERT INTO aggregate_heads AS h (aggregate_type, aggregate_id, aggregate_version) VALUES ($1::text, $2::text, 1)
	ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET aggregate_version = h.aggregate_version + 1
	RETURNING aggregate_version
)
INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
SELECT $3::bigint, $1::text, $2::text, aggregate_version, $4::uuid, 'happened', '' FROM head`,
		w.aggregate[:1], w.aggregate, w.reserved, s.eventID().String())
	s.must(err)
	s.tell(s.name(w), "", drew, draw{w.aggregate, history.Spans([]int64{w.reserved}), true})
	s.saw("reserved")
	w.holds[w.aggregate] = true
	w.drawn = append(w.drawn, w.reserved)
	w.reserved, w.aggregate = 0, ""
}

// burn draws many positions that nobody will use.
func (s *stage) burn(who, what int) {
	w := s.writer(who)
	if w.reserved != 0 {
		return
	}
	s.begin(w)
	var all history.Span
	s.must(w.tx.QueryRowContext(s.ctx, `
SELECT min(p), max(p) FROM (SELECT nextval('events_global_position_seq') AS p FROM generate_series(1, $1::int)) AS drawn`,
		10*(1+what%4)).Scan(&all.First, &all.Last))
	s.tell(s.name(w), "", drew, draw{Positions: []history.Span{all}})
}

// handOn commits a transaction for whose lock another waits, which then appends
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

// handOnMeanwhile does so while a loop is in the middle of a step, between two
// reads for one.
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
		s.tell(s.name(w), "", savepointSet, nil)
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
	s.tell(s.name(w), "", undone, nil)
}

func (s *stage) commit(who, what int)   { s.endSome(who, what, true) }
func (s *stage) rollback(who, what int) { s.endSome(who, what, false) }

// endSome ends a transaction. The first writer takes its time, until it is
// stale.
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
		s.tellEnd(s.name(w), w, history.Committed)
	} else {
		s.must(w.tx.Rollback())
		s.tellEnd(s.name(w), w, history.RolledBack)
	}
	*w = writer{}
}

func (s *stage) prepare(who, _ int) {
	w := s.begun(who)
	if w == nil || w.reserved != 0 {
		return
	}
	s.gids++
	w.gid = fmt.Sprintf("g%d", s.gids)
	s.in(w, "PREPARE TRANSACTION '"+w.gid+"'")
	_ = w.tx.Rollback() // there is none any more: it gives the connection back
	s.tellEnd(s.name(w), w, history.PreparedToEnd)
	s.saw("prepared")
	w.tx = nil
	gone := *w
	s.prepared = append(s.prepared, &gone)
	*w = writer{}
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
	s.tellEnd(w.gid, w, ended)
	s.prepared = slices.Delete(s.prepared, n, n+1)
}

// terminate ends the backend of a writer.
func (s *stage) terminate(who, _ int) {
	if w := s.begun(who); w != nil {
		s.tell(s.name(w), "", history.FaultInjected, history.Injection{Fault: writerEnded})
		s.end(`pid = $1::int`, w.pid)
		s.forget(w)
		s.saw("terminated")
	}
}

// forget gives up a writer whose backend is gone.
func (s *stage) forget(w *writer) {
	s.tellEnd(s.name(w), w, history.RolledBack)
	_ = w.tx.Rollback() // gives the broken connection back
	*w = writer{}
}

// appear is called when the events of a transaction are about to be seen for
// the first time: nobody may have declared them void before. What a frontier
// publishes under the token of an earlier life promises nothing: it may read
// rows in this one before it notices, and no guard lets them pass.
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

// token is the random part of this incarnation, empty before there is one.
func (s *stage) token() (token string) {
	err := s.own.QueryRowContext(s.ctx, `SELECT coalesce((SELECT token::text FROM consumer_checkpoints_token), '')`).Scan(&token)
	s.must(err)
	return token
}

// name is what a writer is called in the account of a run.
func (s *stage) name(w *writer) string {
	for i := range s.writers {
		if w == &s.writers[i] {
			return fmt.Sprintf("writer %d", i)
		}
	}
	return "prepared " + w.gid
}
