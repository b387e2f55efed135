package main

import (
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
	orderPoll  struct{ more bool }
	orderAbout struct {
		name string
		more bool
	}
	orderWait    struct{} // until the next poll
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
		return b, []any{orderPoll{}}
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

// waits is the order after a poll of the clock, which waits for the next.
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

// end tells what became of a change, and polls at once.
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
	return b, []any{orderPoll{true}}
}

// said is an error for people, on one line.
func said(err error) string { return clean(errtext.Line(err.Error())) }
