package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit in which the kernel tells CPU times, on every architecture
// that Go runs on.
const tick = 10 * time.Millisecond

// spent is CPU time of this process and of the server's. Where /proc does not
// tell, known is false.
type spent struct {
	client, server time.Duration
	known          bool
}

func (s spent) minus(other spent) spent {
	return spent{s.client - other.client, s.server - other.server, s.known && other.known}
}

// spent returns what was used so far.
func (l *lab) spent() (sum spent) {
	postmaster, self := l.server.PID(), os.Getpid()
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // a good pattern
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended; its parent has its times then
		}
		switch t, ok := parseTimes(string(text)); {
		case !ok:
			return spent{}
		case t.pid == self:
			sum.client = t.own
			sum.known = postmaster != 0
		case t.pid == postmaster:
			sum.server += t.own + t.ended
		case t.parent == postmaster:
			sum.server += t.own
		}
	}
	return sum
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
	var n [6]int
	for i, field := range []string{strings.TrimSpace(text[:open]), rest[1], rest[11], rest[12], rest[13], rest[14]} {
		var err error
		if n[i], err = strconv.Atoi(field); err != nil {
			return t, false
		}
	}
	return times{n[0], n[1], time.Duration(n[2]+n[3]) * tick, time.Duration(n[4]+n[5]) * tick}, true
}
