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

// Microseconds is an SQL expression for a time as a number that no setting of a session
// changes. of stands in it twice, so it must not be volatile. The epoch is taken of the
// second: until PostgreSQL 13 it is a double, too short for both in one.
func Microseconds(of string) string {
	return `(extract(epoch FROM date_trunc('second', ` + of + `))::bigint * 1000000 + extract(microseconds FROM ` + of + `)::bigint % 1000000)`
}
