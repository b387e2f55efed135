// Package errtext keeps what errors say on one line, short, and without the
// passwords of URLs: some drivers repeat a connection string that they cannot read.
package errtext

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxValue = 100   // bytes of a value
	maxText  = 4_000 // bytes of an error
)

// Value quotes a value that an error shows. Of a long one it shows the
// beginning and the length.
func Value[T ~string](s T) string {
	if len(s) <= maxValue {
		return strconv.Quote(string(s))
	}
	return fmt.Sprintf("%q... (%d bytes)", beginning(string(s), maxValue), len(s))
}

// Word is Value without the quotes, where s is short and of one line.
func Word(s string) string {
	if len(s) <= maxValue && !strings.ContainsAny(s, "\r\n") {
		return s
	}
	return Value(s)
}

// password is that of a URL, with what stands before and behind it. In PostgreSQL's,
// which people write by hand, it may have an @ or a / that should have been escaped.
var password = regexp.MustCompile(`(postgres(?:ql)?://[^\s:/@"']*:)[^"'\r\n]*@|(://[^\s:/@"']*:)[^/@"'\r\n]*@`)

// Line puts a text on one line. Of a long one it leaves the beginning and the
// length. The password of a URL is left out.
func Line(s string) string {
	if strings.Contains(s, "://") {
		s = password.ReplaceAllString(s, "${1}${2}xxxxx@")
	}
	long := len(s)
	if long > maxText {
		s = beginning(s, maxText)
	}
	if strings.ContainsAny(s, "\r\n") {
		s = joined(s)
	}
	if long > maxText {
		s = fmt.Sprintf("%s... (%d bytes)", s, long)
	}
	return s
}

// joined separates the lines of a text by semicolons, save those after a mark
// that says that more follows.
func joined(s string) string {
	var b strings.Builder
	for _, line := range strings.FieldsFunc(s, func(r rune) bool { return r == '\r' || r == '\n' }) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		switch before := b.String(); {
		case before == "":
		case strings.ContainsAny(before[len(before)-1:], ":;,"):
			b.WriteByte(' ')
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// beginning returns at most limit bytes of s, without a part of a character.
func beginning(s string, limit int) string {
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
