package errtext

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"one":                        "one",
		"one\ntwo":                   "one; two",
		"one:\n\ttwo\r\n\r\n three.": "one: two; three.",
		"one\n":                      "one",

		`parse "postgres://me:s3cr3t pw@h:x/d": invalid port`: `parse "postgres://me:xxxxx@h:x/d": invalid port`,
		`parse "postgresql://me:a/b@c@h/d": invalid port`:     `parse "postgresql://me:xxxxx@h/d": invalid port`,
		"amqp://me:secret@h/ is away":                         "amqp://me:xxxxx@h/ is away",
		"postgres://me@h:5432/d and you@there":                "postgres://me@h:5432/d and you@there",
		"http://h:80/a and b@c":                               "http://h:80/a and b@c",
	} {
		if got := Line(text); got != want {
			t.Errorf("of %q: %q, want %q", text, got, want)
		}
	}
}

// Line returns one short line, which is valid UTF-8 if the text is.
func TestShort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Repeat(rapid.String().Draw(t, "s"), rapid.IntRange(1, 2_000).Draw(t, "times"))
		for _, got := range []string{Line(s), Value(s)} {
			if strings.ContainsAny(got, "\r\n") || len(got) > 2*maxText || !utf8.ValidString(got) {
				t.Fatalf("%q", got)
			}
		}
		if len(Value(s)) > 11*maxValue {
			t.Fatalf("%d bytes of a value", len(Value(s)))
		}
	})
	if got, want := Value(strings.Repeat("ä", 51)), `"`+strings.Repeat("ä", 50)+`"... (102 bytes)`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
