package pgdriver

import (
	"math/bits"
	"regexp"
	"strconv"
)

// RoundLimit lowers the LIMIT of a statement a little, to one of a few: each is a
// statement of its own, which drivers and servers keep prepared.
func RoundLimit(n int) int {
	if n < 32 {
		return n
	}
	step := bits.Len(uint(n)) - 3 // a quarter of the power of two below
	return n >> step << step
}

var parameter = regexp.MustCompile(`\$([0-9]+)`)

// ShiftParameters numbers the parameters of a user's SQL on, behind the first n of the
// statement that it becomes part of.
func ShiftParameters(sql string, n int) string {
	return parameter.ReplaceAllStringFunc(sql, func(p string) string {
		i, err := strconv.Atoi(p[1:])
		if err != nil {
			return p
		}
		return "$" + strconv.Itoa(i+n)
	})
}
