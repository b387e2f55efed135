package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/ops"
)

// shown is a view of consumers whose names are given, at a second.
func shown(second int, names ...string) view {
	v := view{at: time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC)}
	for i, name := range names {
		v.consumers = append(v.consumers, ops.Consumer{Name: name, Position: int64(100*second + i), HeadLag: int64(10 - i), OldestAge: time.Duration(i) * time.Second})
	}
	return v
}

// after is a board after messages, and what is to be done after the last.
func after(b board, all ...any) (board, []any) {
	var orders []any
	for _, m := range all {
		if name, isKey := m.(string); isKey {
			m = key{name: name}
			if utf8.RuneCountInString(name) == 1 {
				m = key{name, name}
			}
		}
		b, orders = b.next(m)
	}
	return b, orders
}

func typed(text string) (all []any) {
	for _, r := range text {
		all = append(all, string(r))
	}
	return all
}

func only[T any](t *testing.T, orders []any) (order T) {
	t.Helper()
	if len(orders) == 1 {
		if o, ok := orders[0].(T); ok {
			return o
		}
	}
	t.Fatalf("is to be done: %#v, want one %T", orders, order)
	return order
}

func names(all []ops.Consumer) (names []string) {
	for _, c := range all {
		names = append(names, c.Name)
	}
	return names
}

// Left and right choose the column that sorts, and the choice stays with the consumer.
func TestBoardSorts(t *testing.T) {
	b := newBoard(shown(1, "a", "b", "c"))
	if got := names(b.sorted()); !slices.Equal(got, []string{"c", "b", "a"}) {
		t.Errorf("by age: %v", got)
	}
	b, _ = after(b, "down", "i")
	if got := names(b.sorted()); !slices.Equal(got, []string{"a", "b", "c"}) || b.chosen() != "b" {
		t.Errorf("turned round: %v, chosen is %s", got, b.chosen())
	}
	b, _ = after(b, "i", "left")
	if got := names(b.sorted()); b.sort != byBehind || !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("by how far behind: %v", got)
	}
	for range columns {
		b, _ = after(b, "right")
		if !strings.Contains(b.text(), "v") {
			t.Errorf("no mark shows what sorts:\n%s", b.text())
		}
	}
	if b.sort != byBehind || b.chosen() != "b" {
		t.Errorf("once round: by %d, chosen is %s", b.sort, b.chosen())
	}
}

// A poll that brings another order leaves the choice at the consumer, and keys act on that.
func TestBoardStaysAtTheConsumer(t *testing.T) {
	b, _ := after(newBoard(shown(1, "a", "b", "c")), "down")
	later := shown(2, "a", "b", "c")
	later.consumers[1].OldestAge = time.Hour
	b, _ = after(b, looked{view: later}, "p")
	if b.row != 0 || b.ask == nil || b.ask.request.name != "b" || !strings.Contains(b.text(), chosenOn+"> b ") {
		t.Errorf("b was chosen, and is the first now:\n%s", b.text())
	}
}

// What sorts is what is shown, with ties in order of name.
func TestBoardSortsByEachColumn(t *testing.T) {
	busy, idle := uuid.New(), uuid.New()
	first := shown(1, "a", "b", "c")
	second := shown(3, "a", "b", "c")
	second.workers = []ops.Worker{{ID: busy, Host: "h2", PID: 1}, {ID: idle, Host: "h1", PID: 1}}
	for i, w := range []uuid.UUID{busy, uuid.Nil, idle} {
		c := &second.consumers[i]
		c.Position, c.HeadLag, c.OldestAge, c.DeadLetters, c.Worker = []int64{500, 700, 600}[i], []int64{3, 1, 2}[i], []time.Duration{1, 3, 2}[i], []int64{0, 0, 4}[i], w
	}
	b, _ := after(newBoard(first), looked{view: second})
	for by, want := range map[column]string{byName: "abc", byPosition: "bca", byBehind: "acb", byOldest: "bca", byState: "acb", byDead: "cab", byRate: "bca", byWorker: "bca"} {
		b.sort = by
		if got := strings.Join(names(b.sorted()), ""); got != want {
			t.Errorf("by %d: %s, want %s", by, got, want)
		}
	}
	if text := b.text(); !strings.Contains(text, " 300 ") && !strings.Contains(text, "299") {
		t.Errorf("no rate of (700-101)/2 is shown:\n%s", text)
	}
}

// While the database is away the last view stays, says of when it is, and is asked for
// again, by one clock.
func TestBoardIsOld(t *testing.T) {
	b, orders := after(newBoard(shown(1, "a")), ticked{time.Date(2026, 1, 2, 3, 4, 11, 0, time.UTC)})
	only[orderPoll](t, orders)
	b, orders = after(b, looked{err: errors.New("connection\x1b[2J refused\nhere")})
	only[orderWait](t, orders)
	if text := b.text(); !strings.Contains(text, "as of 03:04:01Z, 10s ago") || !strings.Contains(text, `connection\u001b[2J refused; here`) || !strings.Contains(text, "a ") {
		t.Errorf("shown is\n%s", text)
	}
	b, orders = after(b, looked{view: shown(20, "a")})
	only[orderWait](t, orders)
	if strings.Contains(b.text(), "as of") {
		t.Errorf("shown is\n%s", b.text())
	}
	if _, orders = after(b, looked{view: shown(21, "a"), more: true}); len(orders) != 0 {
		t.Errorf("a look beside the clock orders %#v", orders)
	}
}

// p asks for a reason, shows what it would record, and asks again.
func TestBoardPauses(t *testing.T) {
	b, orders := after(newBoard(shown(1, "a", "b")), "p")
	if len(orders) != 0 || !strings.Contains(b.text(), "pause of b") || !strings.Contains(b.text(), "reason:") {
		t.Fatalf("%#v, shown is\n%s", orders, b.text())
	}
	b, orders = after(b, " ", "enter")
	if len(orders) != 0 || !strings.Contains(b.text(), "give a reason") {
		t.Fatalf("without a reason: %#v, shown is\n%s", orders, b.text())
	}
	b, orders = after(b, append(typed("qxp"), "backspace", "enter")...)
	want := request{verb: 'p', name: "b", reason: "qx"}
	if got := only[orderPreview](t, orders).request; got != want {
		t.Fatalf("previews %v, want %v", got, want)
	}
	b, _ = after(b, previewed{request: want, would: preview{effects: []effect{{"b", "pause", []byte(`{"position": 7}`)}}}})
	if text := b.text(); !strings.Contains(text, `pause of b: {"position": 7}`) || !strings.Contains(text, "enter does it") {
		t.Fatalf("shown is\n%s", text)
	}
	b, orders = after(b, "enter")
	if o := only[orderMake](t, orders); o.request != want || len(o.shown.effects) != 1 {
		t.Fatalf("does %#v", o)
	}
	if _, orders := after(b, "enter", "q", "p", "esc"); len(orders) != 0 {
		t.Errorf("keys while it is made do %#v", orders)
	}
	b, orders = after(b, made{plan: plan{what: "pause", name: "b"}})
	only[orderPoll](t, orders)
	if !strings.Contains(b.text(), "pause of b: done") {
		t.Errorf("shown is\n%s", b.text())
	}
}

// s asks which event comes next, and wants the name typed.
func TestBoardSkips(t *testing.T) {
	b, orders := after(newBoard(shown(1, "a")), "s")
	if only[orderNext](t, orders).name != "a" {
		t.Fatalf("%#v", orders)
	}
	for says, f := range map[string]found{
		"there is no event for a":  {name: "a", all: []ops.Next{{Consumer: "a"}}},
		"a is in 2 units":          {name: "a", all: []ops.Next{{Position: 1}, {Position: 2}}},
		"the server \\u001b[2J is": {name: "a", err: errors.New("the server \x1b[2J is away")},
	} {
		if b, _ := after(b, f); b.ask != nil || !strings.Contains(b.text(), says) {
			t.Errorf("want %s, shown is\n%s", says, b.text())
		}
	}
	b, _ = after(b, found{name: "a", all: []ops.Next{{Consumer: "a", Position: 7}}})
	b, orders = after(b, "x", "enter")
	want := request{'s', "a", 7, "x"}
	if got := only[orderPreview](t, orders).request; got != want {
		t.Fatalf("previews %v", got)
	}
	other := want
	other.position = 8
	if b, _ := after(b, previewed{request: other}); b.ask.stage != previewing {
		t.Error("the preview of another change was taken")
	}
	b, _ = after(b, previewed{request: want})
	if !strings.Contains(b.text(), "never handles the event at 7") || !strings.Contains(b.text(), "type a to do it") {
		t.Fatalf("shown is\n%s", b.text())
	}
	b, orders = after(b, "enter")
	if len(orders) != 0 || !strings.Contains(b.text(), "not its name") {
		t.Fatalf("%#v without the name", orders)
	}
	if _, orders := after(b, "b", "enter"); len(orders) != 0 {
		t.Fatalf("%#v with another name", orders)
	}
	if gone, orders := after(b, "esc"); len(orders) != 0 || gone.ask != nil || !strings.Contains(gone.text(), "nothing was changed") {
		t.Errorf("esc: %#v\n%s", orders, gone.text())
	}
	b, orders = after(b, "a", "enter")
	only[orderMake](t, orders)
	b, orders = after(b, "ctrl+c")
	if len(orders) != 0 || !strings.Contains(b.text(), "then top ends") {
		t.Errorf("Ctrl-C while it is made: %#v\n%s", orders, b.text())
	}
	lost := judge(&ops.UnknownOutcomeError{Operation: 9, Err: errors.New("lost")})
	b, orders = after(b, made{err: lost})
	only[orderQuit](t, orders)
	if b.unknown == nil || exitOf(b.unknown) != exitUnknown {
		t.Errorf("the outcome that is not known is forgotten: %v", b.unknown)
	}
}

// A refusal is shown, and nothing is asked any more.
func TestBoardIsRefused(t *testing.T) {
	b, _ := after(newBoard(shown(1, "a")), append(typed("rx"), "enter")...)
	b, orders := after(b, previewed{request: request{verb: 'r', name: "a", reason: "x"}, err: judge(fmt.Errorf("it is not paused: %w", ops.ErrUnchanged))})
	if len(orders) != 0 || b.ask != nil || !strings.Contains(b.text(), "it is not paused") {
		t.Errorf("%#v, shown is\n%s", orders, b.text())
	}
}

// Enter shows the consumer, where keys act on one of its units.
func TestBoardShowsAConsumer(t *testing.T) {
	v := shown(1, "a", "c")
	v.consumers[1].Units = []ops.Unit{{Name: "c#0-7ff"}, {Name: "c#800-fff"}}
	b, orders := after(newBoard(v), "enter")
	if o := only[orderAbout](t, orders); o.name != "c" || !o.more {
		t.Fatalf("reads %#v", o)
	}
	if !strings.Contains(b.text(), "reading") {
		t.Errorf("shown is\n%s", b.text())
	}
	b, _ = after(b, knew{dossier: dossier{view: v, Consumer: v.consumers[1]}, more: true})
	b, _ = after(b, "down", "down", "p")
	if b.ask == nil || b.ask.request.name != "c#800-fff" || !strings.Contains(b.text(), "UNIT") {
		t.Fatalf("shown is\n%s", b.text())
	}
	b, orders = after(b, "esc", ticked{v.at})
	if o := only[orderAbout](t, orders); o.name != "c" || o.more {
		t.Fatalf("the clock reads %#v", o)
	}
	gone, orders := after(b, knew{err: unknownConsumer("c", nil)})
	only[orderWait](t, orders)
	if gone.open != "" || !strings.Contains(gone.text(), "there is no consumer") {
		t.Errorf("after it was retired is shown\n%s", gone.text())
	}
	away, _ := after(b, knew{err: errors.New("refused")})
	if away.open == "" || !strings.Contains(away.text(), "as of") || !strings.Contains(away.text(), "UNIT") {
		t.Errorf("while the database is away is shown\n%s", away.text())
	}
	if b, _ = after(b, "esc"); b.open != "" {
		t.Error("esc does not go back")
	}
	_, orders = after(b, "q")
	only[orderQuit](t, orders)
}

// Whatever happens in whatever order, the screen has its size and no control characters but
// the row's, one clock runs, and a change is made only as it was previewed and confirmed.
func TestBoardAnyhow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBoard(shown(0))
		clocks := 1 // what waits, or reads it
		var asked *request
		var confirmed bool
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			var m any
			switch rapid.SampledFrom([]string{"key", "key", "key", "key", "clock", "more", "preview", "made", "next", "size"}).Draw(t, "what") {
			case "clock":
				m = anyLook(t, b, i, false)
				clocks--
			case "more":
				m = anyLook(t, b, i, true)
			case "preview":
				if asked == nil {
					continue
				}
				m = previewed{request: *asked, would: preview{effects: []effect{{asked.name, "k", []byte(`{}`)}}}, err: anyError(t)}
			case "made":
				if b.ask == nil || b.ask.stage != making {
					continue
				}
				m = made{plan{what: "x", name: b.ask.request.name}, judge(anyError(t))}
			case "next":
				m = found{"a", []ops.Next{{Position: rapid.Int64Range(0, 9).Draw(t, "position")}}, anyError(t)}
			case "size":
				m = resized{rapid.IntRange(10, 200).Draw(t, "wide"), rapid.IntRange(1, 60).Draw(t, "high")}
			default:
				text := rapid.SampledFrom([]string{"", "", "", "p", "r", "s", "q", "a", "\x1b[2J"}).Draw(t, "text")
				m = key{rapid.SampledFrom([]string{"up", "down", "left", "right", "i", "enter", "esc", "pgup", "pgdown", "home", "end", "ctrl+c", "backspace", "p", "r", "s", "q"}).Draw(t, "key"), text}
			}
			before := b
			var orders []any
			b, orders = b.next(m)
			for _, o := range orders {
				switch o := o.(type) {
				case orderWait:
					clocks++
				case orderPreview:
					asked = &o.request
					if o.request.reason == "" {
						t.Fatalf("previews without a reason: %#v", o)
					}
				case orderMake:
					confirmed = o.request.verb != 's' || before.ask.typed == o.request.name
					if asked == nil || o.request != *asked || before.ask.stage != askConfirmation || len(o.shown.effects) != 1 || !confirmed {
						t.Fatalf("makes %#v after the preview of %v in %#v", o, asked, before.ask)
					}
				}
			}
			if clocks != 1 {
				t.Fatalf("%d clocks run", clocks)
			}
			checkScreen(t, b)
		}
	})
}

// anyLook is what a poll finds: an error, or consumers that have come or gone.
func anyLook(t *rapid.T, b board, second int, more bool) any {
	all := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "größe", "c\x1b[2J", "long name " + strings.Repeat("x", 90)}), 0, 5, rapid.ID[string]).Draw(t, "names")
	v, err := shown(second, all...), anyError(t)
	if b.open == "" {
		return looked{v, err, more}
	}
	at := slices.IndexFunc(v.consumers, func(c ops.Consumer) bool { return c.Name == b.open })
	switch {
	case err != nil:
		return knew{dossier{}, err, more}
	case at < 0:
		return knew{dossier{}, unknownConsumer(b.open, v.consumers), more}
	}
	d := dossier{view: v, Consumer: v.consumers[at]}
	for i := range rapid.IntRange(0, 3).Draw(t, "units") {
		d.Units = append(d.Units, ops.Unit{Name: fmt.Sprintf("%s#%d", d.Name, i)})
	}
	return knew{d, nil, more}
}

func anyError(t *rapid.T) error {
	return rapid.SampledFrom([]error{nil, nil, nil, errors.New("away\x1b[2J\nfor now"), ops.ErrUnchanged}).Draw(t, "error")
}

func checkScreen(t *rapid.T, b board) {
	text := b.text()
	lines := strings.Split(text, "\n")
	if len(lines) != b.high {
		t.Fatalf("%d lines on a screen of %d:\n%s", len(lines), b.high, text)
	}
	for _, l := range lines {
		plain := strings.TrimSuffix(strings.TrimPrefix(l, chosenOn), chosenOff)
		if clean(plain) != plain || utf8.RuneCountInString(plain) > b.wide {
			t.Fatalf("on a screen of %d: %q", b.wide, l)
		}
	}
}

func TestKeys(t *testing.T) {
	for sent, want := range map[string]string{
		"q":                    "q",
		"\x1b[A\x1b[B\x1bOC":   "up down right",
		"\x1b[5~\x1b[6~\x1b[H": "pgup pgdown home",
		"\x1b":                 "esc",
		"\x1bq":                "esc q",
		"\x1b[200~x":           "x",
		"ö\r\x7f\x03":          "ö enter backspace ctrl+c",
		"\xff\x00\t":           "",
	} {
		keys, rest := keysOf([]byte(sent))
		if got := strings.Join(listed(keys, func(k key) string { return k.name }), " "); got != want || len(rest) != 0 {
			t.Errorf("%q: %s, and %q is left, want %s", sent, got, rest, want)
		}
	}
}

// However what a terminal sends is cut, the keys are the same, unless it is cut behind an
// escape, which is a key.
func TestKeysInPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := []byte(strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{"a", "ö", "大", "\x1b[A", "\x1b[5~", "\r", "\x1bOD", "\x1b[1;5C"})).Draw(t, "sent"), ""))
		want, _ := keysOf(sent)
		var got []key
		var rest []byte
		for i := 0; i < len(sent); {
			to := min(i+rapid.IntRange(1, 4).Draw(t, "size"), len(sent))
			if sent[to-1] == 0x1b {
				to++
			}
			var some []key
			some, rest = keysOf(append(rest, sent[i:to]...))
			got, i = append(got, some...), to
		}
		if !slices.Equal(got, want) || len(rest) != 0 {
			t.Fatalf("in pieces %v and %q, want %v", got, rest, want)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		sent := rapid.SliceOf(rapid.Byte()).Draw(t, "sent")
		if keys, rest := keysOf(sent); len(keys)+len(rest) > len(sent) {
			t.Fatalf("%v and %q", keys, rest)
		}
	})
}
