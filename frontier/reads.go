package frontier

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/store"
)

// seen is the part that every statement returns on a log whose sequence is known.
type seen struct {
	token                 string
	changes               int64
	table, sequence, file int64
	last                  int64
}

// read runs a query that returns one row: the columns of seen, then more.
func (s *session) read(ctx context.Context, what, query string, args []any, more ...any) (seen, error) {
	var v seen
	args = append([]any{s.origin.database, s.origin.table}, args...)
	err := s.on.QueryRowContext(ctx, query, args...).Scan(append([]any{&v.token, &v.changes, &v.table, &v.sequence, &v.file, &v.last}, more...)...)
	if err != nil {
		return v, fmt.Errorf("frontier: %s: %w", what, err)
	}
	s.f.notifyChange(v.changes)
	if v.table != s.origin.tableOID || v.sequence != s.origin.sequenceOID || v.file != s.origin.file {
		return v, setupError(errLogReplaced, "no action is needed: the frontier starts again", "table %s or sequence %s was replaced", s.origin.table, s.origin.sequence)
	}
	return v, nil
}

// checkAbove returns an error if a visible position is above the sequence's last value. The
// sequence would issue that position, or positions below it, later.
func (s *session) checkAbove(position, last int64) error {
	if position <= last {
		return nil
	}
	return setupError(errSequenceBehind, fmt.Sprintf("SELECT setval('%s', (SELECT max(%s) FROM %s))", s.origin.sequence, s.origin.column, s.origin.table),
		"position %d is visible, but the last value of sequence %s is %d", position, s.origin.sequence, last)
}

func (s *session) readStart(ctx context.Context) (startRead, error) {
	if !s.origin.named {
		token, err := s.readToken(ctx)
		return startRead{token: token, found: true}, err
	}
	var settled int64
	v, err := s.read(ctx, "read the token and the settled row", s.sql.start, []any{s.origin.key()}, &settled)
	return startRead{token: v.token, settled: settled, found: settled >= 0, last: v.last}, err
}

// readToken reads the token of a log that is read through its store. Two equal tokens around a
// read name the incarnation of the read.
func (s *session) readToken(ctx context.Context) (token string, err error) {
	var changes int64
	if err = s.on.QueryRowContext(ctx, s.sql.token, s.origin.database).Scan(&token, &changes); err != nil {
		return "", fmt.Errorf("frontier: read the token: %w", err)
	}
	s.f.notifyChange(changes)
	return token, nil
}

func (s *session) readTail(ctx context.Context, after int64, limit int) (tailRead, error) {
	if !s.origin.named {
		return s.readUnnamedTail(ctx, after)
	}
	var list string
	v, err := s.read(ctx, "read the tail of the log", s.sql.tail, []any{after, limit}, &list)
	if err != nil {
		return tailRead{}, err
	}
	runs, n, err := parseRuns(list)
	if err != nil {
		return tailRead{}, err
	}
	if n > 0 {
		err = s.checkAbove(runs[len(runs)-1].Last, v.last)
	}
	return tailRead{token: v.token, last: v.last, runs: runs, full: n >= limit}, err
}

func (s *session) readUnnamedTail(ctx context.Context, after int64) (tailRead, error) {
	// The token is read by the statement below.
	events, more, err := s.readEvents(ctx, s.f.cfg.Log, after, tailLimit)
	if err != nil {
		return tailRead{}, err
	}
	r := tailRead{full: more}
	for i := range events {
		r.runs = appendPosition(r.runs, events[i].GlobalPosition)
	}
	r.token, err = s.readToken(ctx)
	return r, err
}

// readRows reads events that are published without another read, so the events must come from
// the machine's incarnation.
func (s *session) readRows(ctx context.Context, after int64, limit int) (events []store.PersistedEvent, more bool, err error) {
	log := s.f.cfg.Log
	if bound, ok := log.(store.BoundLog); ok {
		log = bound.At(s.machine.token)
	}
	return s.readEvents(ctx, log, after, limit)
}

func (s *session) readEvents(ctx context.Context, log store.Log, after int64, limit int) (events []store.PersistedEvent, more bool, err error) {
	events, more, err = s.reads.Events(ctx, log, s.on, after, limit, bounded.MaxBytes)
	if err != nil {
		return nil, false, fmt.Errorf("frontier: read the events at the end of the log: %w", err)
	}
	return events, more, nil
}

func (s *session) readHead(ctx context.Context) (headRead, error) {
	if !s.origin.named {
		head, err := s.f.cfg.Log.GetLatestGlobalPosition(ctx, s.on)
		if err != nil {
			return headRead{}, fmt.Errorf("frontier: read the head of the log: %w", err)
		}
		token, err := s.readToken(ctx)
		return headRead{token: token, head: head}, err
	}
	var head int64
	v, err := s.read(ctx, "read the head of the log", s.sql.head, nil, &head)
	if err == nil {
		err = s.checkAbove(head, v.last)
	}
	return headRead{token: v.token, last: v.last, head: head}, err
}

func (s *session) scanLocks(ctx context.Context) (scanRead, error) {
	var r scanRead
	var holders string
	var err error
	if s.origin.named {
		r.token, holders, err = s.scanNamed(ctx)
	} else {
		r.token, holders, err = s.scanUnnamed(ctx)
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(holders), &r.holders); err != nil {
		return r, fmt.Errorf("frontier: scan the locks: %w", err)
	}
	return r, nil
}

func (s *session) scanNamed(ctx context.Context) (token, holders string, err error) {
	var hidden bool
	var set settings
	v, err := s.read(ctx, "scan the locks", s.sql.scan, []any{s.origin.sequenceOID}, &hidden, &set.cache, &set.increment, &set.cycle, &set.lowest, &holders)
	if err != nil {
		return "", "", err
	}
	if hidden {
		return "", "", rowSecurityError(s.origin.table)
	}
	return v.token, holders, set.check(s.origin.sequence)
}

func (s *session) scanUnnamed(ctx context.Context) (token, holders string, err error) {
	if err := s.on.QueryRowContext(ctx, s.sql.scan, s.origin.database).Scan(&holders); err != nil {
		return "", "", fmt.Errorf("frontier: scan the locks: %w", err)
	}
	token, err = s.readToken(ctx)
	return token, holders, err
}

// parseRuns parses ascending positions separated by commas.
func parseRuns(list string) (runs []store.Range, n int, err error) {
	for rest := list; rest != ""; n++ {
		var field string
		field, rest, _ = strings.Cut(rest, ",")
		position, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, 0, fmt.Errorf("frontier: read the tail of the log: %w", err)
		}
		runs = appendPosition(runs, position)
	}
	return runs, n, nil
}
