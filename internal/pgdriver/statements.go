package pgdriver

import (
	"math/bits"
	"regexp"
	"strconv"

	"github.com/pgfrontier/worker/store"
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

const bound = "2006-01-02 15:04:05.999999-07"

// The bounds of times as SQL. The literals have no type, so that they take that of the
// column.
var (
	earliest = `'` + store.EarliestTime.Format(bound) + `'`
	latest   = `'` + store.LatestTime.Format(bound) + `'`
)

// Time is an SQL expression for a time of a row, as a time.Time and its JSON can hold it.
// A time before [store.EarliestTime] is that, '-infinity' included. A time after
// [store.LatestTime] is that, 'infinity' included. NULL is NULL. of stands in the
// expression three times, so it must not be volatile. Select it, and compare the column
// itself: no index serves the expression.
func Time(of string) string {
	return `(CASE WHEN ` + of + ` < ` + earliest + ` THEN ` + earliest + ` WHEN ` + of + ` > ` + latest + ` THEN ` + latest + ` ELSE ` + of + ` END)`
}

// TimeOrNever is Time, but NULL for 'infinity', which stands for never.
func TimeOrNever(of string) string {
	return `(CASE WHEN ` + of + ` < ` + earliest + ` THEN ` + earliest + ` WHEN ` + of + ` <= ` + latest + ` THEN ` + of + ` WHEN ` + of + ` < 'infinity' THEN ` + latest + ` END)`
}

// Microseconds is an SQL expression for [Time] as a number that no setting of a session
// changes. of stands in it several times, so it must not be volatile. The epoch is taken of
// the second: until PostgreSQL 13 it is a double, too short for both in one.
func Microseconds(of string) string {
	of = Time(of)
	return `(extract(epoch FROM date_trunc('second', ` + of + `))::bigint * 1000000 + extract(microseconds FROM ` + of + `)::bigint % 1000000)`
}

// Age is an SQL expression for how long ago a time was when the statement began, in
// microseconds. It is 0 for a time ahead, and 100 years for one that was earlier, so that a
// time.Duration can hold it. NULL is NULL. of must not be volatile.
func Age(of string) string {
	return `(CASE WHEN ` + of + ` < statement_timestamp() THEN (extract(epoch FROM statement_timestamp() - greatest(` + of + `, statement_timestamp() - interval '36500 days')) * 1000000)::bigint WHEN ` + of + ` IS NOT NULL THEN 0 END)`
}

// Array returns the text of an array of numbers: every driver takes it in every mode.
func Array(numbers []int64) string {
	b := []byte{'{'}
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(append(b, '}'))
}
