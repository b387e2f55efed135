package pgdriver

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"time"
)

// Value scans a row with one column, for [QueryAll].
func Value[T any](rows *sql.Rows) (v T, err error) {
	err = rows.Scan(&v)
	return v, err
}

// Columns returns a function that scans a row into the destinations that into returns, in the
// order of the columns, for [QueryAll].
func Columns[T any](into func(*T) []any) func(*sql.Rows) (T, error) {
	return func(rows *sql.Rows) (v T, err error) {
		err = rows.Scan(into(&v)...)
		return v, err
	}
}

// Destination is a destination of Scan, which converts a column.
type Destination func(column any) error

// Scan implements [sql.Scanner].
func (d Destination) Scan(column any) error { return d(column) }

// into returns a destination that passes a column to set, unless the column is NULL.
func into[T any](set func(T)) sql.Scanner {
	return Destination(func(column any) error {
		var v sql.Null[T]
		err := v.Scan(column)
		if err == nil && v.Valid {
			set(v.V)
		}
		return err
	})
}

// OrZero is a destination that leaves v as it is for NULL.
func OrZero[T any](v *T) sql.Scanner { return into(func(to T) { *v = to }) }

// UTC is a destination for a time, which it converts to UTC. In another zone the year may be
// 10000, which JSON cannot represent. NULL is the zero Time.
func UTC(t *time.Time) sql.Scanner { return into(func(at time.Time) { *t = at.UTC() }) }

// UTCOrNil is [UTC], except that NULL is nil.
func UTCOrNil(t **time.Time) sql.Scanner {
	return into(func(at time.Time) { at = at.UTC(); *t = &at })
}

// Duration is a destination for a number of microseconds. NULL is 0.
func Duration(d *time.Duration) sql.Scanner {
	return into(func(n int64) { *d = time.Duration(n) * time.Microsecond })
}

// RawJSON is a destination for JSON. NULL is nil.
func RawJSON(raw *json.RawMessage) sql.Scanner {
	return into(func(text []byte) { *raw = text })
}

// JSON is a destination for JSON, which it parses into v. NULL leaves v as it is.
func JSON(v any) sql.Scanner {
	return Destination(func(column any) error {
		var text sql.Null[[]byte]
		if err := text.Scan(column); err != nil || !text.Valid {
			return err
		}
		if err := json.Unmarshal(text.V, v); err != nil {
			return fmt.Errorf("parse the JSON of a column: %w", err)
		}
		return nil
	})
}
