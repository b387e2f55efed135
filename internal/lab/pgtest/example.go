package pgtest

import (
	"fmt"
	"testing"
)

// Example stands in for the testing.T that an Example does not have:
//
//	t, done := pgtest.Example()
//	defer done()
//	db := pgtest.New(t).DB
//
// done runs the cleanups. A failure panics.
func Example() (t testing.TB, done func()) {
	e := &example{}
	return e, func() {
		for i := len(e.cleanups) - 1; i >= 0; i-- {
			e.cleanups[i]()
		}
	}
}

// example has what makes a database. Anything else panics: the TB in it is nil.
type example struct {
	testing.TB
	cleanups []func()
}

func (e *example) Helper()                           {}
func (e *example) Cleanup(f func())                  { e.cleanups = append(e.cleanups, f) }
func (e *example) Errorf(format string, args ...any) { e.Fatalf(format, args...) }
func (e *example) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (e *example) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
