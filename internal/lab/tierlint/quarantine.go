package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// quarantineFile lists the tests in quarantine. Its head says how.
const quarantineFile = "internal/lab/tier/quarantine.txt"

// most is how many days a test may stay in quarantine.
const most = 14

// entry is a test in quarantine.
type entry struct {
	place     string // file:line
	since     time.Time
	dir, test string
}

var entryLine = regexp.MustCompile(`^(\d{4}-\d{2}-\d{2}) (\S+) (\w+) ([^:]*\S): +(\S.*)$`)

// readQuarantine returns the entries of the file, and the faults of their form.
func readQuarantine(root string) (entries []entry, problems []string, err error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(quarantineFile)))
	if err != nil {
		return nil, nil, err
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		place := fmt.Sprintf("%s:%d", quarantineFile, n)
		fields := entryLine.FindStringSubmatch(line)
		if fields == nil {
			problems = append(problems, fmt.Sprintf("%s: %q is no entry: write 2026-11-26 package/path TestName owner: first line of the output", place, line))
			continue
		}
		since, err := time.Parse(time.DateOnly, fields[1])
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %s is no date: write the day of the failure, such as 2026-11-26", place, fields[1]))
			continue
		}
		entries = append(entries, entry{place, since, fields[2], fields[3]})
	}
	return entries, problems, nil
}

// skipPattern returns the argument of go test -skip, or "".
func skipPattern(entries []entry) string {
	if len(entries) == 0 {
		return ""
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.test)
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// lintQuarantine returns the faults of the entries. now is the machine's clock.
func (t testFiles) lintQuarantine(entries []entry, now time.Time) (problems []string) {
	year, month, day := now.Date()
	today := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	for _, e := range entries {
		_, exists := t.tests[e.dir][e.test]
		others := t.others(e)
		days := int(today.Sub(e.since).Hours() / 24)
		wrong := ""
		switch {
		case !exists:
			wrong = fmt.Sprintf("there is no test %s in directory %s: remove the entry", e.test, e.dir)
		case len(others) > 0:
			wrong = fmt.Sprintf("%s is also in directory %s, and the gate would skip it there: rename one of them", e.test, strings.Join(others, ", "))
		case days < 0:
			wrong = fmt.Sprintf("%s is in the future: write the day of the failure", e.since.Format(time.DateOnly))
		case days > most:
			wrong = fmt.Sprintf("%s has been in quarantine for %d days, allowed are %d: mend the test or the product, and remove the entry", e.test, days, most)
		}
		if wrong != "" {
			problems = append(problems, e.place+": "+wrong)
		}
	}
	return problems
}

// others returns the other directories that have a test of the same name.
func (t testFiles) others(e entry) (dirs []string) {
	for dir, tests := range t.tests {
		if _, ok := tests[e.test]; ok && dir != e.dir {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}
