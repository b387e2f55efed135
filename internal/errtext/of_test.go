package errtext

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// wraps has methods that dereference it, like the errors of most packages.
type wraps struct{ err error }

func (w *wraps) Error() string { return w.err.Error() }
func (w *wraps) Unwrap() error { return w.err }

// coded is an error of a driver.
type coded struct{ code string }

func (c *coded) Error() string    { return "coded" }
func (c *coded) SQLState() string { return c.code }

// panics panics with itself, which fmt cannot print either.
type panics struct{}

func (p panics) Error() string { panic(p) }

func TestOf(t *testing.T) {
	if Of(nil) != nil || Join(nil, nil) != nil || Of(io.EOF) != io.EOF {
		t.Error("what is short already has changed")
	}
	err := Join(io.EOF, nil, errors.New("two\nlines"))
	if !errors.Is(err, io.EOF) || err.Error() != "EOF; two; lines" {
		t.Errorf("got %v", err)
	}
}

func TestOfErrorsThatPanic(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want string
		is   error
	}{
		"a nil pointer":          {err: (*wraps)(nil), want: "<nil> (a nil *errtext.wraps is not a nil error: return nil itself)"},
		"a wrapped nil pointer":  {err: fmt.Errorf("save: %w", (*wraps)(nil)), want: "save: <nil>"},
		"a nil pointer inside":   {err: &wraps{}, want: "%!v(PANIC=Error method: runtime error: invalid memory address or nil pointer dereference)"},
		"with a cause":           {err: errors.Join(io.EOF, panics{}), want: "%!v(PANIC=method of *errors.joinError)", is: io.EOF},
		"with itself":            {err: panics{}, want: "%!v(PANIC=method of errtext.panics)"},
		"when asked for a state": {err: (*coded)(nil), want: "coded"},
	} {
		t.Run(name, func(t *testing.T) {
			sound := Sound(test.err)
			if got := sound.Error(); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if test.is != nil && !errors.Is(sound, test.is) {
				t.Errorf("it does not unwrap to %v", test.is)
			}
			walk(sound)
			if got := Join(io.EOF, test.err); !errors.Is(got, io.EOF) || got.Error() != "EOF; "+test.want {
				t.Errorf("joined: %q", got)
			}
		})
	}
	if got, want := Panic(panics{}), "%!v(PANIC=method of errtext.panics)"; got != want {
		t.Errorf("a panic's value: %q, want %q", got, want)
	}
}

// For all errors, no method of Of's result panics, and errors whose methods do not panic are
// kept.
func TestSound(t *testing.T) {
	leaf := rapid.SampledFrom([]error{io.EOF, errors.New("two\nlines"), (*wraps)(nil), (*coded)(nil), panics{}, &wraps{}, &coded{"40001"}})
	rapid.Check(t, func(t *rapid.T) {
		err, whole := leaf.Draw(t, "leaf"), true
		for range rapid.IntRange(0, 4).Draw(t, "depth") {
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				inner := err // fmt prints nothing for panics{}
				attempt(func() string { err = fmt.Errorf("then: %w", inner); return "" })
			case 1:
				err = &wraps{err}
			case 2:
				err = errors.Join(err, leaf.Draw(t, "other"))
			}
		}
		if _, whole = attempt(err.Error); whole {
			_, whole = attempt(func() string { return walk(err) })
		}
		if whole && Sound(err) != err {
			t.Fatalf("a sound error became %v", Sound(err))
		}
		for _, got := range []error{Of(err), Join(err, io.EOF)} {
			walk(got)
			if text := got.Error(); text == "" || strings.Contains(text, "\n") {
				t.Fatalf("it says %q", text)
			}
		}
	})
}

// Where returns the line that panicked, also for a panic of the runtime.
func TestWhere(t *testing.T) {
	stack := func(f func()) (stack []byte) {
		defer func() {
			_ = recover()
			stack = debug.Stack()
		}()
		f()
		return nil
	}
	var none map[string]int
	for name, f := range map[string]func(){
		"a panic":          func() { panic("boom") },
		"the runtime's":    func() { none["x"] = 1 },
		"a panic with nil": func() { panic(nil) },
	} {
		if at := Where(stack(f)); !regexp.MustCompile(`^ at \S*of_test\.go:\d+$`).MatchString(at) {
			t.Errorf("%s: %q", name, at)
		}
	}
	inFolder := "\npanic({0x1, 0x2})\n\t/go/src/runtime/panic.go:792 +0x132\nexample.com/runtime/jobs.Handle()\n\t/src/runtime/jobs/handle.go:7 +0x1d\n"
	if at := Where([]byte(inFolder)); at != " at /src/runtime/jobs/handle.go:7" {
		t.Errorf("in a folder named runtime: %q", at)
	}
	for _, stack := range []string{"", "goroutine 1 [running]:\n", "\npanic(\n\tgarbage"} {
		if at := Where([]byte(stack)); at != "" {
			t.Errorf("of %q: %q", stack, at)
		}
	}
}

// ASCIIOfJSON converts the strings of a JSON document like ASCII.
func TestASCIIOfJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		document, err := json.Marshal(map[string]string{"k": text})
		if err != nil {
			t.Fatal(err)
		}
		ascii := ASCIIOfJSON(string(document))
		var back map[string]string
		if err := json.Unmarshal([]byte(ascii), &back); err != nil || back["k"] != ASCII(strings.ToValidUTF8(text, "\uFFFD")) {
			// Go's JSON already escapes the characters that break scripts.
			if !strings.ContainsAny(text, "\u2028\u2029") {
				t.Fatalf("%q became %q, %v", document, back["k"], err)
			}
		}
		for _, b := range []byte(ascii) {
			if b >= 0x80 {
				t.Fatalf("%q is not ASCII", ascii)
			}
		}
	})
}
