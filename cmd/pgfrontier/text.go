package main

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// width is that of a terminal which no table exceeds by its last column.
const width = 80

// clean escapes what a terminal would obey: control characters, those that turn the
// direction of writing, and bytes that are no characters. What the database holds is
// untrusted.
func clean(s string) string {
	if strings.IndexFunc(s, isUnsafe) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch size := utf8.RuneLen(r); {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !isUnsafe(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case size > 3:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// printable is a text of lines, each clean but for its tabs.
func printable(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimRight(line, "\n"), "\t")
		b.WriteString(strings.Join(listed(cells, clean), "\t") + "\n")
	}
	return b.String()
}

func isUnsafe(r rune) bool { return !unicode.IsPrint(r) }

// cleanJSON escapes the same in a JSON text, whose meaning stays.
func cleanJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < utf8.RuneSelf && r != 0x7f || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// cut shortens a text to so many characters.
func cut(s string, to int) string {
	if utf8.RuneCountInString(s) <= to {
		return s
	}
	return string([]rune(s)[:max(to-3, 0)]) + "..."
}

// wrap breaks the lines of a paragraph.
func wrap(s string) string {
	var b strings.Builder
	at := 0
	for _, word := range strings.Fields(s) {
		n := utf8.RuneCountInString(word)
		switch {
		case at == 0:
		case at+1+n > width:
			b.WriteByte('\n')
			at = 0
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// table is a list for people. A column whose title begins with > has numbers, one
// with ~ comes last and is cut where the line would be too wide.
type table struct {
	titles []string
	rows   [][]string
}

func newTable(titles ...string) *table { return &table{titles: titles} }

func (t *table) row(cells ...any) {
	var row []string
	for _, c := range cells {
		row = append(row, clean(fmt.Sprint(c)))
	}
	t.rows = append(t.rows, row)
}

func (t *table) String() string { return strings.Join(t.lines(width), "\n") + "\n" }

// lines are the titles and the rows. The last column ends at a width.
func (t *table) lines(to int) (lines []string) {
	head := make([]string, len(t.titles))
	widths := make([]int, len(t.titles))
	for i, title := range t.titles {
		head[i] = strings.TrimLeft(title, ">~")
		widths[i] = len(head[i])
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range append([][]string{head}, t.rows...) {
		var line strings.Builder
		at := 0
		for i, cell := range row {
			pad := strings.Repeat(" ", max(widths[i]-utf8.RuneCountInString(cell), 0))
			switch t.titles[i][0] {
			case '>':
				line.WriteString(pad + cell)
			case '~':
				line.WriteString(cut(cell, max(to-at, 20)))
			default:
				line.WriteString(cell + pad)
			}
			line.WriteString("  ")
			at += widths[i] + 2
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}

// short is a duration as people say it.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + short(-d)
	case d == 0:
		return "0s"
	case d < time.Second:
		return fmt.Sprintf("%dms", max(d.Milliseconds(), 1))
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// stamp is a time as people read it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// dash stands for nothing.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
