package main

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/ops"
)

// column is one of the list.
type column int

const (
	byName column = iota
	byPosition
	byBehind
	byOldest
	byState
	byDead
	byRate
	byWorker
	columns // how many
)

// sorted are the consumers in the order that is shown: names from a, numbers from the
// greatest.
func (b board) sorted() []ops.Consumer {
	all := slices.Clone(b.view.consumers)
	slices.SortStableFunc(all, func(x, y ops.Consumer) int {
		n := b.compare(x, y)
		if b.reversed {
			n = -n
		}
		return cmp.Or(n, strings.Compare(x.Name, y.Name))
	})
	return all
}

func (b board) compare(x, y ops.Consumer) int {
	switch b.sort {
	case byPosition:
		return cmp.Compare(y.Position, x.Position)
	case byBehind:
		return cmp.Compare(y.HeadLag, x.HeadLag)
	case byOldest:
		return cmp.Compare(y.OldestAge, x.OldestAge)
	case byState:
		return strings.Compare(b.view.state(x), b.view.state(y))
	case byDead:
		return cmp.Compare(y.DeadLetters, x.DeadLetters)
	case byRate:
		rateX, _ := b.view.rate(x)
		rateY, _ := b.view.rate(y)
		return cmp.Compare(rateY, rateX)
	case byWorker:
		return strings.Compare(b.view.where(x), b.view.where(y))
	}
	return strings.Compare(x.Name, y.Name)
}

const (
	keysOfList = "up down enter: choose  left right i: sort  p pause  r resume  s skip  q quit"
	keysOfPage = "esc: back  up down pgup pgdown: move  p pause  r resume  s skip  q quit"
)

// text is the screen: a head, a list or a page, and a foot.
func (b board) text() string {
	foot := b.foot()
	lines := b.head()
	space := max(b.high-len(lines)-len(foot), 0)
	if b.open != "" {
		lines = append(lines, window(b.pageLines(), b.from, space)...)
	} else {
		lines = append(lines, b.list(space)...)
	}
	for len(lines) < b.high-len(foot) {
		lines = append(lines, "")
	}
	lines = append(lines, foot...)
	return strings.Join(lines[max(len(lines)-b.high, 0):], "\n")
}

// rows is how many lines of the list or the page show at once.
func (b board) rows() int { return max(b.high-len(b.head())-len(b.foot())-1, 1) }

const mostWrong = 5 // lines, and at most a fifth of the screen

func (b board) head() []string {
	var f facts
	b.view.logFacts(&f)
	b.view.wrongFacts(&f, max(min(mostWrong, b.high/5), 1), b.wide)
	if b.lost != nil {
		f.add("OLD", "this is as of %s, %s ago; the database is asked again", b.view.at.UTC().Format("15:04:05Z"), short(b.now.Sub(b.view.at)))
		f.add("error", "%s", errtext.Line(b.lost.Error()))
	}
	lines := strings.Split(strings.TrimRight(f.String(), "\n"), "\n")
	return append(b.fitted(lines), "")
}

func (b board) fitted(lines []string) []string {
	return listed(lines, func(l string) string { return cut(l, b.wide) })
}

// foot are the keys, or the question.
func (b board) foot() []string {
	if b.ask == nil {
		keys := keysOfList
		if b.open != "" {
			keys = keysOfPage
		}
		return b.fitted([]string{"", cmp.Or(b.note, b.acts()), keys})
	}
	ask := b.ask
	lines := []string{"", ask.request.String()}
	c := ask.request.change()
	switch ask.stage {
	case askReason:
		lines = append(lines, b.prompt("reason: "))
	case previewing:
		lines = append(lines, "for: "+clean(ask.request.reason), "reading what it would record ...")
	case askConfirmation, making:
		lines = append(lines, "would record:")
		lines = append(lines, strings.Split(strings.TrimRight(told(ask.would.effects), "\n"), "\n")...)
		if c.final != "" {
			lines = append(lines, c.final)
		}
		switch {
		case ask.stage == making && b.leaving:
			lines = append(lines, "it is being made, and then top ends ...")
		case ask.stage == making:
			lines = append(lines, "it is being made ...")
		case c.final != "":
			lines = append(lines, b.prompt("type "+clean(c.name)+" to do it: "))
		default:
			lines = append(lines, "enter does it")
		}
	}
	return b.fitted(append(lines, cmp.Or(ask.says, "esc changes nothing")))
}

// prompt has what is typed, or its end.
func (b board) prompt(text string) string {
	typed := []rune(b.ask.typed + "_")
	return text + string(typed[max(len(typed)-max(b.wide-utf8.RuneCountInString(text), 10), 0):])
}

// acts says what the keys act on.
func (b board) acts() string {
	if b.open != "" && b.page != nil && len(b.page.Units) > 0 {
		return "unit: " + clean(b.chosen())
	}
	return ""
}

func (b board) pageLines() []string {
	if b.page == nil {
		return b.fitted([]string{"reading about " + clean(b.open) + " ..."})
	}
	return b.fitted(strings.Split(strings.TrimRight(b.page.text(), "\n"), "\n"))
}

// window are so many lines from one on.
func window(lines []string, from, n int) []string {
	from = max(min(from, len(lines)), 0)
	return lines[from:min(from+n, len(lines))]
}

// list are the consumers around the one that is chosen.
func (b board) list(space int) []string {
	all := b.sorted()
	if len(all) == 0 {
		return window(b.fitted([]string{"no consumer has run yet"}), 0, space)
	}
	titles := []string{"CONSUMER", ">POSITION", ">BEHIND", ">OLDEST", "STATE", ">DEAD", ">EV/S", "~WORKER"}
	mark := "v"
	if b.reversed {
		mark = "^"
	}
	titles[b.sort] += mark
	t := newTable(titles...)
	for _, c := range all {
		t.row(c.Name, c.Position, c.HeadLag, short(c.OldestAge), b.view.stateText(c), c.DeadLetters, b.view.rateText(c), b.view.where(c))
	}
	lines := listed(t.lines(b.wide-2), func(l string) string { return cut(l, b.wide-2) })
	shown := max(space-1, 0)
	from := max(min(b.row-shown/2, len(all)-shown), 0)
	out := []string{"  " + lines[0]}
	for i := from; i < min(from+shown, len(all)); i++ {
		if line := lines[i+1]; i == b.row {
			out = append(out, chosenOn+"> "+line+chosenOff)
		} else {
			out = append(out, "  "+line)
		}
	}
	return window(out, 0, space)
}

// The row that is chosen is shown in reverse.
const (
	chosenOn  = "\x1b[7m"
	chosenOff = "\x1b[0m"
)
