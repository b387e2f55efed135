// Package errtext formats errors on one line of limited length, without the passwords of URLs.
// Some drivers repeat a connection string that they cannot parse.
package errtext

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxValue = 100   // maximum bytes of a value
	maxText  = 4_000 // maximum bytes of an error
)

// Value quotes a value for an error. It shortens a long value to its beginning and length.
func Value[T ~string](s T) string {
	if len(s) <= maxValue {
		return strconv.Quote(string(s))
	}
	return fmt.Sprintf("%q... (%d bytes)", beginning(string(s), maxValue), len(s))
}

// Range returns an error about an option whose value is not between low and high. With orZero, 0 is
// allowed, too. Another option may determine low: of then names it, as in "2 x WithOther". If that
// option is out of range itself, Range returns nil, since the range would have no value.
func Range[T int | time.Duration](option string, value, low, high T, orZero bool, of string) error {
	if low <= value && value <= high || orZero && value == 0 || of != "" && (low < 0 || low > high) {
		return nil
	}
	if of != "" {
		of = ", the least is " + of
	}
	return fmt.Errorf("%s: %v is out of range, allowed is %v to %v%s", option, value, low, high, of)
}

// Outcome returns the text of a job or a run that has ended in a state, such as "failed".
func Outcome(what, state, code, text string) string {
	verb := " has "
	if strings.HasPrefix(state, "cancel") {
		verb = " was "
	}
	if code != "" {
		state += " (" + code + ")"
	}
	if text != "" {
		state += ": " + text
	}
	return Line(what + verb + state)
}

// Unquoted is Value without quotes if s is short and on one line.
func Unquoted(s string) string {
	if len(s) <= maxValue && !strings.ContainsAny(s, "\r\n") {
		return s
	}
	return Value(s)
}

// password matches the password of a URL with its surroundings. A PostgreSQL URL, which people
// write by hand, may contain an unescaped @ or /.
var password = regexp.MustCompile(`(postgres(?:ql)?://[^\s:/@"']*:)[^"'\r\n]*@|(://[^\s:/@"']*:)[^/@"'\r\n]*@`)

// Line formats a text on one line. It shortens a long text to its beginning and length, and
// masks the password of a URL.
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

// joined joins the lines of a text by semicolons. After a punctuation mark that announces more,
// such as a colon, there is no semicolon.
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

// beginning returns at most limit bytes of s, and no partial character.
func beginning(s string, limit int) string {
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
