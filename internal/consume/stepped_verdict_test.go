package consume

import (
	"maps"
	"slices"
	"strings"
)

// rounds is how often all actors may continue in the end before they count as stuck.
const rounds = 60

// finish ends all writers and runs the workers until nothing is left to do.
func (s *stage) finish() {
	s.record("", "", actionBegun, deed{Deed: "the end"})
	commits := s.script.commits
	for i := range s.writers {
		if s.writers[i].tx != nil {
			s.endWriter(&s.writers[i], commits[i])
		}
	}
	for commit := commits[len(s.writers)]; len(s.prepared) > 0; commit = !commit {
		s.endPrepared(0, commit)
	}
	for s.settle(); slices.ContainsFunc(s.loops(), (*loop).busy); s.settle() {
		for _, l := range s.loops() {
			s.finishStep(l)
		}
	}
	for range rounds {
		s.pass(0, 0)
		for i := range s.workers {
			for range 4 {
				s.stepFrontier(i, 0)
			}
			s.watch(i, 0)
		}
		for _, l := range s.loops() {
			s.exhaust(l)
		}
		if s.done() {
			return
		}
	}
	s.wrong("after %d rounds not all is done: %s", rounds, s.show(`
SELECT format('%s is at %s of %s, with %s open ranges', consumer_name, last_position,
	(SELECT max(global_position) FROM events), (SELECT count(*) FROM consumer_gap_skips AS g WHERE g.consumer_name = c.consumer_name AND state = 'open'))
FROM consumer_checkpoints AS c`))
}

// exhaust runs a loop for as long as it finds work.
func (s *stage) exhaust(l *loop) {
	for range 1000 { // more than any script has events
		for l.idle() && l.ahead.stopped() { // for other loops, too: this loop's turn comes after them
			s.advance(l, true)
		}
		s.advance(l, true)
		s.finishStep(l)
		if l.err != nil || l.outcome != committed && l.outcome != again {
			return
		}
	}
}

// done reports whether all consumers are at the head and watch no open position.
func (s *stage) done() bool {
	return s.number(`
SELECT (SELECT count(*) FROM consumer_checkpoints WHERE last_position <> (SELECT coalesce(max(global_position), 0) FROM events))
	+ (SELECT count(*) FROM consumer_gap_skips WHERE state = 'open')`) == 0
}

// wanted are the events of a consumer, missing the positions without an event, and voids
// the audited ranges that contain some.
const views = `
WITH wanted AS (
	SELECT c.consumer_name AS consumer, e.* FROM consumer_checkpoints AS c CROSS JOIN events AS e
	WHERE c.consumer_name = 'all' OR e.aggregate_type = 'A'
), missing AS (
	SELECT c.consumer_name AS consumer, p AS position
	FROM consumer_checkpoints AS c CROSS JOIN LATERAL generate_series(1, c.last_position) AS p
	WHERE p NOT IN (SELECT global_position FROM events)
), audit AS (
	SELECT consumer_name AS consumer, * FROM consumer_gap_skips
)`

// verdicts are queries that return violations.
var verdicts = []struct {
	name, query string
	unset       bool // valid only if the consumer was never reset
}{
	{"lost", `
SELECT format('%s: position %s', consumer, global_position) FROM wanted AS w
WHERE NOT EXISTS (SELECT FROM ledger AS l WHERE l.consumer = w.consumer AND l.event_id = w.event_id AND l.position = w.global_position)`, false},
	{"handled more than once", `
SELECT format('%s: position %s', consumer, position) FROM ledger GROUP BY consumer, position HAVING count(*) > 1`, false},
	{"handled, but not in the log", `
SELECT format('%s: position %s', consumer, position) FROM ledger AS l
WHERE NOT EXISTS (SELECT FROM wanted AS w WHERE w.consumer = l.consumer AND w.event_id = l.event_id AND w.global_position = l.position)`, false},
	{"out of order within an aggregate", `
SELECT format('%s: version %s of %s after version %s', consumer, aggregate_version, aggregate_id, before) FROM (
	SELECT l.consumer, e.aggregate_id, e.aggregate_version,
		lag(e.aggregate_version, 1, 0::bigint) OVER (PARTITION BY l.consumer, e.aggregate_id ORDER BY l.id) AS before
	FROM ledger AS l JOIN events AS e ON e.global_position = l.position) AS handled
WHERE aggregate_version <> before + 1`, false},
	{"passed without an audit", `
SELECT format('%s: position %s', consumer, position) FROM missing AS m
WHERE NOT EXISTS (SELECT FROM audit AS a WHERE a.consumer = m.consumer AND a.state = 'void' AND m.position BETWEEN a.gap_position AND a.gap_end)`, false},
	{"audited as void without being so, or twice", `
SELECT format('%s: %s positions are missing, %s were audited', consumer_name, missing, audited) FROM (
	SELECT consumer_name, (SELECT count(*) FROM missing AS m WHERE m.consumer = consumer_name) AS missing,
		(SELECT coalesce(sum(missing), 0) FROM audit AS a WHERE a.consumer = c.consumer_name AND state = 'void') AS audited
	FROM consumer_checkpoints AS c) AS sums
WHERE missing <> audited AND consumer_name <> ALL ($1::text[])`, true},
	{"late without an audit, or the other way round", `
SELECT format('%s: %s were late, %s were audited', consumer_name, late, audited) FROM (
	SELECT consumer_name, (SELECT count(*) FROM ledger WHERE consumer = consumer_name AND late) AS late,
		(SELECT coalesce(sum(missing), 0) FROM audit AS a WHERE a.consumer = c.consumer_name AND state = 'late') AS audited
	FROM consumer_checkpoints AS c) AS sums
WHERE late <> audited AND consumer_name = 'all' AND consumer_name <> ALL ($1::text[])`, true},
	{"closed without a time", `SELECT format('%s: %s', consumer, state) FROM audit WHERE closed_at IS NULL`, false},
}

// judge fails if a verdict finds a violation after all is done.
func (s *stage) judge() {
	reset := slices.Sorted(maps.Keys(s.resets))
	verdict := []string{}
	for _, v := range verdicts {
		var args []any
		if v.unset {
			args = append(args, "{"+strings.Join(reset, ",")+"}")
		}
		if found := s.show(views+v.query, args...); found != "" {
			verdict = append(verdict, v.name+": "+found)
		}
	}
	s.record("", "", judged, verdict)
	for _, v := range verdict {
		s.t.Error(v)
	}
	s.seen["void"] += int(s.number(`SELECT count(*) FROM consumer_gap_skips WHERE state = 'void'`))
	s.seen["late"] += int(s.number(`SELECT count(*) FROM ledger WHERE late`))
}

// show joins the rows of a query that returns texts.
func (s *stage) show(query string, args ...any) string {
	rows, err := s.own.QueryContext(s.ctx, query, args...)
	s.must(err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var text string
		s.must(rows.Scan(&text))
		all = append(all, text)
	}
	s.must(rows.Err())
	slices.Sort(all)
	return strings.Join(all, "; ")
}
