package pgdriver

import (
	"math/bits"
	"regexp"
	"strconv"

	"github.com/pgfrontier/worker/store"
)

// RoundLimit rounds the LIMIT of a statement down a little, to one of few values. Each value is
// a separate statement, which drivers and servers keep prepared.
func RoundLimit(n int) int {
	if n < 32 {
		return n
	}
	step := bits.Len(uint(n)) - 3 // a quarter of the power of two below
	return n >> step << step
}

var parameter = regexp.MustCompile(`\$([0-9]+)`)

// ShiftParameters adds n to the parameter numbers of a user's SQL, which becomes part of a
// statement with n parameters.
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

// earliest and latest are the bounds of times as SQL. The literals have no type, so that they
// take the type of the column.
var (
	earliest = `'` + store.EarliestTime.Format(bound) + `'`
	latest   = `'` + store.LatestTime.Format(bound) + `'`
)

// Time returns an SQL expression for a time of a row within the range of time.Time and its
// JSON. A time before [store.EarliestTime], also '-infinity', becomes that bound. A time after
// [store.LatestTime], also 'infinity', becomes that bound. NULL stays NULL. The expression
// contains of three times, so of must not be volatile. Use Time in a SELECT list, but compare
// the column itself: no index serves the expression.
func Time(of string) string {
	return `(CASE WHEN ` + of + ` < ` + earliest + ` THEN ` + earliest + ` WHEN ` + of + ` > ` + latest + ` THEN ` + latest + ` ELSE ` + of + ` END)`
}

// TimeOrNever is Time, except that 'infinity', which means never, becomes NULL.
func TimeOrNever(of string) string {
	return `(CASE WHEN ` + of + ` < ` + earliest + ` THEN ` + earliest + ` WHEN ` + of + ` <= ` + latest + ` THEN ` + of + ` WHEN ` + of + ` < 'infinity' THEN ` + latest + ` END)`
}

// Microseconds returns an SQL expression for [Time] as a number, which no setting of a session
// affects. The expression contains of several times, so of must not be volatile. The epoch is
// computed for the whole second. Until PostgreSQL 13 it is a double, which cannot hold seconds
// and microseconds together.
func Microseconds(of string) string {
	of = Time(of)
	return `(extract(epoch FROM date_trunc('second', ` + of + `))::bigint * 1000000 + extract(microseconds FROM ` + of + `)::bigint % 1000000)`
}

// Age returns an SQL expression for the age of a time at the start of the statement, in
// microseconds. The age of a future time is 0. The maximum is 100 years, so that a
// time.Duration can hold it. NULL stays NULL. of must not be volatile.
func Age(of string) string {
	return `(CASE WHEN ` + of + ` < statement_timestamp() THEN (extract(epoch FROM statement_timestamp() - greatest(` + of + `, statement_timestamp() - interval '36500 days')) * 1000000)::bigint WHEN ` + of + ` IS NOT NULL THEN 0 END)`
}

// Array returns the text form of an array of numbers, which every driver accepts in every mode.
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
