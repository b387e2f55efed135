package postgres

import (
	"database/sql"
	"strconv"
	"strings"
)

// array builds the text form of a one-dimensional PostgreSQL array. Drivers encode Go slices
// differently, but all of them pass a string on unchanged.
type array struct{ b strings.Builder }

var quoteElement = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// raw adds an element that needs no quotes.
func (a *array) raw(s string) {
	if a.b.Len() == 0 {
		a.b.WriteByte('{')
	} else {
		a.b.WriteByte(',')
	}
	a.b.WriteString(s)
}

func (a *array) int(n int)     { a.raw(strconv.Itoa(n)) }
func (a *array) text(s string) { a.raw(`"` + quoteElement.Replace(s) + `"`) }

// nullText adds a text that may be NULL, as the statement append reads it. Under array_nulls = off,
// PostgreSQL reads NULL in an array as a text.
func (a *array) nullText(s sql.NullString) {
	if s.Valid {
		a.text("=" + s.String)
	} else {
		a.text("")
	}
}

func (a *array) String() string {
	if a.b.Len() == 0 {
		return "{}"
	}
	return a.b.String() + "}"
}

func textArray(all []string) string {
	var a array
	for _, s := range all {
		a.text(s)
	}
	return a.String()
}
