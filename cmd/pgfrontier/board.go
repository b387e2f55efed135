package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/ops"
)

// board is what top shows, and what it waits for. Its methods do no I/O: next takes what has
// happened and says what to do, text says what is shown.
type board struct {
	view view
	lost error // why the view is old; nil: it is not
	now  time.Time

	sort     column
	reversed bool
	at       string // the consumer that is chosen
	row      int    // where it was, should it go

	open string   // the consumer that is shown alone; empty: the list
	page *dossier // of it; nil: it is being read
	unit int      // of those that the page has
	from int      // the page's first line that is shown

	ask     *dialog
	note    string // what became of the last change
	unknown error  // the outcome of the change that was waited for when somebody quit
	leaving bool

	wide, high int
}

// What happens.
type (
	ticked struct{ now time.Time }
	looked struct {
		view view
		err  error
		more bool // beside those of the clock
	}
	knew struct {
		dossier dossier
		err     error
		more    bool
	}
	found struct { // the next events of a consumer
		name string
		all  []ops.Next
		err  error
	}
	previewed struct {
		request request
		would   preview
		err     error
	}
	made struct {
		plan plan
		err  error
	}
	key struct {
		name string // "up", "enter", "q"
		text string // that is typed; empty: it types none
	}
	resized struct{ wide, high int }
)

// What is to be done: what it leads to happens some time later.
type (
	orderLook  struct{ more bool }
	orderAbout struct {
		name string
		more bool
	}
	orderWait    struct{} // until the next look
	orderNext    struct{ name string }
	orderPreview struct{ request request }
	orderMake    struct {
		request request
		shown   preview
	}
	orderQuit struct{}
)

// dialog asks for what a change needs.
type dialog struct {
	request request
	stage   stage
	would   preview
	typed   string
	says    string // what was wrong with the answer
}

type stage int

const (
	askReason stage = iota
	previewing
	askConfirmation
	making
)

func newBoard(first view) board {
	return board{view: first, now: first.at, sort: byOldest, wide: width, high: 24}
}

// next is the board after something has happened, and what is to be done.
func (b board) next(m any) (board, []any) {
	switch m := m.(type) {
	case ticked:
		b.now = m.now
		if b.open != "" {
			return b, []any{orderAbout{b.open, false}}
		}
		return b, []any{orderLook{}}
	case looked:
		b.take(m.view, m.err)
		return b, waits(m.more)
	case knew:
		b.take(m.dossier.view, m.err)
		switch {
		case m.err == nil && m.dossier.Name == b.open:
			b.page = &m.dossier
			b.unit = min(b.unit, len(m.dossier.parts())-1)
		case m.err != nil && exitOf(m.err) == exitRefused: // it was retired
			b.note, b.lost = said(m.err), nil
			b.close()
		}
		return b, waits(m.more)
	case resized:
		b.wide, b.high = m.wide, m.high
	case found:
		return b.toSkip(m)
	case previewed:
		return b.judgePreview(m), nil
	case made:
		return b.end(m)
	case key:
		if b.ask != nil {
			return b.answer(m)
		}
		return b.press(m)
	}
	return b, nil
}

// waits is the order after a look of the clock, which waits for the next.
func waits(more bool) []any {
	if more {
		return nil
	}
	return []any{orderWait{}}
}

// take shows a view, or that there is no newer one.
func (b *board) take(v view, err error) {
	if b.lost = err; err == nil {
		before := b.view
		b.view = v
		b.view.after(&before)
		b.now = v.at
	}
	b.follow()
}

// follow stays at the chosen consumer, or where it was.
func (b *board) follow() {
	all := b.sorted()
	if at := slices.IndexFunc(all, func(c ops.Consumer) bool { return c.Name == b.at }); at >= 0 {
		b.row = at
		return
	}
	b.row, b.at = max(min(b.row, len(all)-1), 0), ""
}

func (b *board) close() { b.open, b.page, b.unit, b.from = "", nil, 0, 0 }

// press is a key while nothing is asked.
func (b board) press(k key) (board, []any) {
	b.note = ""
	switch k.name {
	case "q", "ctrl+c":
		return b, []any{orderQuit{}}
	case "p", "r", "s":
		name := b.chosen()
		switch {
		case name == "":
			return b, nil
		case k.name == "s":
			return b, []any{orderNext{name}}
		}
		b.ask = &dialog{request: request{verb: rune(k.name[0]), name: name}}
		return b, nil
	}
	if b.open != "" {
		return b.pressOnPage(k)
	}
	return b.pressOnList(k)
}

func (b board) pressOnList(k key) (board, []any) {
	step := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -b.rows(), "pgdown": b.rows(), "home": -len(b.view.consumers), "end": len(b.view.consumers)}
	switch k.name {
	case "left":
		b.sort = (b.sort + columns - 1) % columns
	case "right":
		b.sort = (b.sort + 1) % columns
	case "i":
		b.reversed = !b.reversed
	case "enter":
		if b.open = b.chosen(); b.open != "" {
			return b, []any{orderAbout{b.open, true}}
		}
	default:
		all := b.sorted()
		if n, moves := step[k.name]; moves && len(all) > 0 {
			b.row = max(min(b.row+n, len(all)-1), 0)
			b.at = all[b.row].Name
		}
	}
	b.follow()
	return b, nil
}

func (b board) pressOnPage(k key) (board, []any) {
	units := 1
	if b.page != nil {
		units = len(b.page.parts())
	}
	line := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1}[k.name]
	scroll := map[string]int{"pgup": -b.rows(), "pgdown": b.rows(), "home": -b.from}[k.name]
	switch {
	case k.name == "esc" || k.name == "enter" || k.name == "backspace":
		b.close()
		return b, nil
	case units > 1:
		b.unit = max(min(b.unit+line, units-1), 0)
	default:
		scroll += line
	}
	b.from = max(min(b.from+scroll, len(b.pageLines())-1), 0)
	return b, nil
}

// chosen is the consumer, or the unit, that a key acts on.
func (b board) chosen() string {
	switch all := b.sorted(); {
	case b.open != "" && b.page != nil:
		return b.page.parts()[b.unit]
	case b.open != "":
		return b.open
	case len(all) > 0:
		return all[b.row].Name
	}
	return ""
}

// parts are the units of a consumer, or the consumer.
func (d dossier) parts() []string {
	if len(d.Units) == 0 {
		return []string{d.Name}
	}
	return listed(d.Units, func(u ops.Unit) string { return u.Name })
}

// toSkip asks about the event that comes next.
func (b board) toSkip(f found) (board, []any) {
	switch {
	case b.ask != nil:
	case f.err != nil:
		b.note = said(f.err)
	case len(f.all) != 1:
		b.note = fmt.Sprintf("%s is in %d units: choose one with enter", clean(f.name), len(f.all))
	case f.all[0].Position == 0:
		b.note = fmt.Sprintf("there is no event for %s at the moment", clean(f.name))
	default:
		b.ask = &dialog{request: request{verb: 's', name: f.name, position: f.all[0].Position}}
	}
	return b, nil
}

// answer is a key while something is asked.
func (b board) answer(k key) (board, []any) {
	ask := *b.ask
	b.ask = &ask
	switch {
	case ask.stage == making:
		b.leaving = b.leaving || k.name == "ctrl+c"
	case k.name == "ctrl+c":
		return b, []any{orderQuit{}}
	case k.name == "esc":
		b.ask, b.note = nil, "nothing was changed"
	case ask.stage == previewing:
	case k.name == "backspace":
		if ask.typed != "" {
			_, size := utf8.DecodeLastRuneInString(ask.typed)
			ask.typed = ask.typed[:len(ask.typed)-size]
		}
	case k.name == "enter" && ask.stage == askReason:
		if ask.request.reason = strings.TrimSpace(ask.typed); ask.request.reason == "" {
			ask.says = "give a reason: the operations keep it"
			break
		}
		ask.stage, ask.typed, ask.says = previewing, "", ""
		return b, []any{orderPreview{ask.request}}
	case k.name == "enter":
		c := ask.request.change()
		if c.final != "" && ask.typed != c.name {
			ask.says = "that is not its name"
			break
		}
		ask.stage, ask.says = making, ""
		return b, []any{orderMake{ask.request, ask.would}}
	default:
		ask.typed += strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return -1
			}
			return r
		}, k.text)
	}
	return b, nil
}

// judgePreview shows what a change would record, or why it is refused.
func (b board) judgePreview(m previewed) board {
	switch {
	case b.ask == nil || b.ask.stage != previewing || b.ask.request != m.request: // it was given up
	case m.err != nil:
		b.ask, b.note = nil, said(m.err)
	default:
		b.ask = &dialog{request: m.request, stage: askConfirmation, would: m.would}
	}
	return b
}

// end tells what became of a change, and looks at once.
func (b board) end(m made) (board, []any) {
	b.ask = nil
	if m.err != nil {
		b.note = said(m.err)
		if b.leaving && exitOf(m.err) == exitUnknown {
			b.unknown = m.err
		}
	} else {
		b.note = outcomeText(m.plan, nil)
	}
	switch {
	case b.leaving:
		return b, []any{orderQuit{}}
	case b.open != "":
		return b, []any{orderAbout{b.open, true}}
	}
	return b, []any{orderLook{true}}
}

// said is an error for people, on one line.
func said(err error) string { return clean(errtext.Line(err.Error())) }

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
		lines = append(lines, "for: "+clean(ask.request.reason), "looking what it would record ...")
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
		t.row(c.Name, c.Position, c.HeadLag, short(c.OldestAge), b.view.state(c), c.DeadLetters, b.view.rateText(c), b.view.where(c))
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
