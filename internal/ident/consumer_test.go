package ident

import (
	"strings"
	"testing"
)

func TestCheckConsumer(t *testing.T) {
	for _, name := range []string{"orders_v1", "the orders", "Bestellübersicht", "注文", "نام\u200cها", strings.Repeat("n", 200)} {
		if err := CheckConsumer(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, says := range map[string]string{
		"":                       "is empty",
		" \t\u3000":              "is empty",
		strings.Repeat("n", 201): "201 bytes, at most 200",
		"a\xff":                  "invalid UTF-8",
		"a\x00b":                 "U+0000",
		"a\nb":                   "U+000A",
		"a\x1b[31mb":             "U+001B",
		"a\u0085b":               "U+0085",
		"a\u2028b":               "U+2028",
		"a\u202eb":               "U+202E",
		"a\u2066b":               "U+2066",
	} {
		err := CheckConsumer(name)
		if err == nil || !strings.Contains(err.Error(), says) || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x202e }) {
			t.Errorf("%q: %v, want %q", name, err, says)
		}
	}
}
