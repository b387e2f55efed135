package pgdriver_test

import (
	"testing"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// A limit is lowered by less than a fifth, and few are left of many.
func TestRoundLimit(t *testing.T) {
	few := map[int]bool{}
	for n := range 10_001 {
		r := pgdriver.RoundLimit(n)
		if r > n || n < 32 && r != n || 5*r < 4*n {
			t.Errorf("%d becomes %d", n, r)
		}
		few[r] = true
	}
	if len(few) > 80 {
		t.Errorf("%d limits are left", len(few))
	}
}

func TestShiftParameters(t *testing.T) {
	for sql, want := range map[string]string{
		"":                            "",
		"size <= $1":                  "size <= $8",
		"$1 = $2 OR $10 = $1":         "$8 = $9 OR $17 = $8",
		"$99999999999999999999 < 1":   "$99999999999999999999 < 1",
		"price = '$' || $1::text":     "price = '$' || $8::text",
		"no parameter, but a $ alone": "no parameter, but a $ alone",
	} {
		if got := pgdriver.ShiftParameters(sql, 7); got != want {
			t.Errorf("%s becomes %s, want %s", sql, got, want)
		}
	}
}
