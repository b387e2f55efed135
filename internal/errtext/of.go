package errtext

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Of returns an error with err's text on one line that unwraps to err. It returns err itself if
// that is on one line. Of does not panic if a method of err does.
func Of(err error) error {
	if err == nil {
		return nil
	}
	err = Sound(err)
	text := err.Error()
	if line := Line(text); line != text {
		return &short{err, line}
	}
	return err
}

// Storable returns an error's text on one line that PostgreSQL can store. It is empty if err is nil.
func Storable(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(strings.ToValidUTF8(Of(err).Error(), "\uFFFD"), "\x00", `\0`)
}

// ASCII escapes all characters that some database encodings lack, as Go does.
func ASCII(s string) string { return ascii(s, `\`) }

// ASCIIOfJSON is ASCII for the strings of a JSON document.
func ASCIIOfJSON(s string) string { return ascii(s, `\\`) }

func ascii(s, backslash string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case r <= 0xFFFF:
			fmt.Fprintf(&b, `%su%04x`, backslash, r)
		default:
			fmt.Fprintf(&b, `%sU%08x`, backslash, r)
		}
	}
	return b.String()
}

// Join is errors.Join on one line.
func Join(errs ...error) error {
	sound := make([]error, len(errs))
	for i, err := range errs {
		sound[i] = Of(err)
	}
	return Of(errors.Join(sound...))
}

type short struct {
	err  error // nil: err must not be unwrapped
	line string
}

func (s *short) Error() string { return s.line }

func (s *short) Unwrap() error { return s.err }

// Sound returns err if its methods do not panic. Methods usually panic because of a nil pointer
// in an error. Otherwise Sound returns an error with the text that fmt prints for err. This
// error unwraps to err if the chain can be walked.
func Sound(err error) error {
	if err == nil {
		return nil
	}
	_, says := attempt(err.Error)
	_, walks := attempt(func() string { return walk(err) })
	switch {
	case !walks:
		return &short{nil, Line(textOf(err))}
	case !says:
		return &short{err, Line(textOf(err))}
	}
	return err
}

// Panic returns the text of a panic's value on one line. It does not panic if a method of the
// value does.
func Panic(v any) string { return Line(formatted(v)) }

// Where returns " at " and the line of a panic, from the stack at its recovery. The line is the
// first below the panic outside of the runtime. Where returns "" if there is none.
func Where(stack []byte) string {
	_, below, _ := strings.Cut(string(stack), "\npanic(")
	_, below, _ = strings.Cut(below, " +0x") // the line of panic itself
	function := ""
	for line := range strings.Lines(below) {
		at, of, _ := strings.Cut(strings.TrimSpace(line), " +0x")
		switch {
		case of == "":
			function = line // the line of its call follows
		case !strings.HasPrefix(function, "runtime."):
			return " at " + at
		}
	}
	return ""
}

// textOf returns err's text as fmt prints it.
func textOf(err error) string {
	if text, ok := attempt(err.Error); ok {
		return text
	}
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Sprintf("<nil> (a nil %T is not a nil error: return nil itself)", err)
	}
	return formatted(err)
}

// formatted is fmt.Sprint. fmt.Sprint panics if a method panics with a value whose own method
// panics.
func formatted(v any) string {
	if text, ok := attempt(func() string { return fmt.Sprint(v) }); ok {
		return text
	}
	return fmt.Sprintf("%%!v(PANIC=method of %T)", v)
}

// walk calls the methods that errors.Is and errors.As call, and SQLState.
func walk(err error) string {
	var s interface{ SQLState() string }
	if errors.Is(err, errWalk) || !errors.As(err, &s) {
		return ""
	}
	return s.SQLState()
}

var errWalk = errors.New("no error is this one")

// attempt returns f's result. ok is false if f panicked.
func attempt(f func() string) (text string, ok bool) {
	defer func() {
		if !ok {
			_ = recover()
		}
	}()
	text = f()
	return text, true
}

// Lines returns the lines of a stack without their indentation. As a list they stay on one
// line of a text log.
func Lines(stack []byte) []string {
	lines := strings.Split(strings.TrimSpace(string(stack)), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}
