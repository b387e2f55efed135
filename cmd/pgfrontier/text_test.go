package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// Whatever the database holds, a terminal is given printable characters only, and
// text that is so already is as it was.
func TestClean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "s")
		got := clean(s)
		if !utf8.ValidString(got) || strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
			t.Fatalf("%q became %q", s, got)
		}
		if utf8.ValidString(s) && strings.IndexFunc(s, isUnsafe) < 0 && got != s {
			t.Fatalf("%q became %q", s, got)
		}
	})
	for s, want := range map[string]string{
		"\x1b[2Jgone":    `\u001b[2Jgone`,
		"a\nb\tc":        `a\nb\tc`,
		"\u202egnp.exe":  `\u202egnp.exe`,
		"\u009b31m":      `\u009b31m`,
		"\xff":           `\xff`,
		"größer, 大":      "größer, 大",
		"\U000e0041 tag": `\U000e0041 tag`,
	} {
		if got := clean(s); got != want {
			t.Errorf("%q became %q, want %q", s, got, want)
		}
	}
}

// The JSON that is printed means the same, in printable characters.
func TestCleanJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "data")
		text, err := json.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}
		got := cleanJSON(string(text))
		if at := strings.IndexFunc(got, isUnsafe); at >= 0 {
			t.Fatalf("%q has an unprintable character at %d", got, at)
		}
		var back map[string]string
		if err := json.Unmarshal([]byte(got), &back); err != nil {
			t.Fatalf("%v: %s", err, got)
		}
		var want map[string]string
		if err := json.Unmarshal(text, &want); err != nil || !reflect.DeepEqual(back, want) {
			t.Fatalf("%s means %v, want %v", got, back, want)
		}
	})
}

// A table fits the terminal if only its last column is too wide, and names are whole.
func TestTableFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := newTable("NAME", ">N", "~TEXT")
		name := rapid.StringMatching(`[a-z]{1,40}`).Draw(t, "name")
		table.row(name, rapid.Int32().Draw(t, "n"), rapid.String().Draw(t, "text"))
		for line := range strings.Lines(table.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Fatalf("%d wide: %s", n, line)
			}
		}
		if !strings.Contains(table.String(), "\n"+name) {
			t.Fatalf("the name %s is not whole:\n%s", name, table)
		}
	})
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1: "1ms", 999 * time.Millisecond: "999ms", time.Second: "1s", 61 * time.Second: "1m1s",
		time.Hour: "1h0m", 49*time.Hour + time.Minute: "2d1h", -time.Minute: "-1m0s",
	} {
		if got := short(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}
