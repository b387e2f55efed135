package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"
)

// terminal is taken by top, and given back as it was.
type terminal struct {
	in     *os.File
	out    io.Writer
	before *term.State
	once   sync.Once
	shown  string
}

const (
	// The other screen, without a cursor, and without lines that go on below.
	screenOn  = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	screenOff = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	frameEnd  = "\x1b[m" // no attributes
)

func takeTerminal(in *os.File, out io.Writer) (*terminal, error) {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, err
	}
	t := &terminal{in: in, out: out, before: before}
	if _, err := io.WriteString(out, screenOn); err != nil {
		t.giveBack()
		return nil, err
	}
	return t, nil
}

func (t *terminal) giveBack() {
	t.once.Do(func() {
		_, _ = io.WriteString(t.out, screenOff)
		_ = term.Restore(int(t.in.Fd()), t.before)
	})
}

func (t *terminal) size() (wide, high int, err error) { return term.GetSize(int(t.in.Fd())) }

// draw shows a text of as many lines as the terminal has, unless that is shown already.
func (t *terminal) draw(text string) error {
	if text == t.shown {
		return nil
	}
	t.shown = text
	// What was there is erased before a line, not after: a line that fills the terminal
	// leaves the cursor on its last character.
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = "\x1b[K" + line
		if i == len(lines)-1 {
			lines[i] = "\x1b[J" + line
		}
	}
	_, err := io.WriteString(t.out, "\x1b[H"+strings.Join(lines, "\r\n")+frameEnd)
	return err
}

// readKeys reads keys until the terminal hangs up, and then closes keys. A read of a
// terminal cannot be ended: it is left to the end of the process.
func (t *terminal) readKeys(ctx context.Context, keys chan<- key) {
	defer close(keys)
	var rest []byte
	buffer := make([]byte, 1<<10)
	for {
		n, err := t.in.Read(buffer)
		if err != nil {
			return
		}
		var all []key
		all, rest = keysOf(append(rest, buffer[:n]...))
		for _, k := range all {
			select {
			case keys <- k:
			case <-ctx.Done():
				return
			}
		}
	}
}

// sequences are what keys send after an escape.
var sequences = map[string]string{
	"[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
	"[5~": "pgup", "[6~": "pgdown", "[H": "home", "[F": "end", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end",
}

var controls = map[byte]string{'\r': "enter", '\n': "enter", 0x7f: "backspace", '\b': "backspace", 3: "ctrl+c", 0x1b: "esc"}

// keysOf reads the keys of what a terminal has sent. rest is the beginning of one that is
// not complete.
func keysOf(sent []byte) (keys []key, rest []byte) {
	for len(sent) > 0 {
		k, size := keyOf(sent)
		if size == 0 {
			return keys, bytes.Clone(sent)
		}
		if k != (key{}) {
			keys = append(keys, k)
		}
		sent = sent[size:]
	}
	return keys, nil
}

// keyOf reads the first key and its size, which is 0 if it is not complete. The zero key is
// one that nobody wants.
func keyOf(sent []byte) (k key, size int) {
	if sent[0] == 0x1b && len(sent) > 1 && (sent[1] == '[' || sent[1] == 'O') {
		for i := 2; i < len(sent); i++ {
			if sent[i] >= 0x40 && sent[i] <= 0x7e {
				return key{name: sequences[string(sent[1:i+1])]}, i + 1
			}
		}
		return k, 0
	}
	if name := controls[sent[0]]; name != "" {
		return key{name: name}, 1
	}
	if sent[0] < ' ' {
		return k, 1
	}
	if !utf8.FullRune(sent) {
		return k, 0
	}
	r, size := utf8.DecodeRune(sent)
	if r == utf8.RuneError {
		return k, size
	}
	return key{string(r), string(r)}, size
}
