package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit in which the kernel tells CPU times, on every architecture
// that Go runs on.
const tick = 10 * time.Millisecond

// spent is CPU time that processes of the server have used.
type spent struct{ all, writers time.Duration }

func (s spent) minus(other spent) spent { return spent{s.all - other.all, s.writers - other.writers} }

// spent returns what the server has used so far, and what of it the sessions
// of s.db have, which the writers use.
func (s *site) spent(ctx context.Context) (sum spent, err error) {
	if s.postmaster == 0 {
		return sum, errNotOurs
	}
	writers, err := s.sessions(ctx)
	if err != nil {
		return sum, err
	}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(files) == 0 {
		return sum, errors.Join(err, errNotOurs)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended; the postmaster has its times then
		}
		t, ok := parseTimes(string(text))
		switch {
		case !ok:
			return sum, fmt.Errorf("%s cannot be understood: %q", file, text)
		case t.pid == s.postmaster:
			sum.all += t.own + t.ended
		case t.parent == s.postmaster:
			sum.all += t.own
			if writers[t.pid] {
				sum.writers += t.own
			}
		}
	}
	return sum, nil
}

// errNotOurs: there is nothing to measure.
var errNotOurs = errors.New("the server's processes cannot be measured from here")

// sessions are the process ids of the sessions of s.db.
func (s *site) sessions(ctx context.Context) (pids map[int]bool, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT pid FROM pg_stat_activity WHERE application_name = $1`, writersName)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	pids = map[int]bool{}
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			return nil, err
		}
		pids[pid] = true
	}
	return pids, rows.Err()
}

// times are those of a process and of its children that have ended.
type times struct {
	pid, parent int
	own, ended  time.Duration
}

// parseTimes reads /proc/<pid>/stat: the name, in parentheses, may hold
// anything.
func parseTimes(text string) (t times, ok bool) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return t, false
	}
	rest := strings.Fields(text[end+1:]) // from the third field on
	if len(rest) < 15 {
		return t, false
	}
	var errs [6]error
	var n [6]int
	for i, field := range []string{strings.TrimSpace(text[:open]), rest[1], rest[11], rest[12], rest[13], rest[14]} {
		n[i], errs[i] = strconv.Atoi(field)
	}
	t = times{n[0], n[1], time.Duration(n[2]+n[3]) * tick, time.Duration(n[4]+n[5]) * tick}
	return t, errors.Join(errs[:]...) == nil
}
