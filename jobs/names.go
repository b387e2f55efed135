package jobs

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
)

// maxName bounds names of kinds and queues, in bytes; keys may be longer, an index
// has them.
const (
	maxName = 200
	maxKey  = 1000
)

// checkName checks a name that comes from a program: what is its option or field.
func checkName(what, name string) error { return checkText(what, name, maxName) }

func checkText(what, name string, most int) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty", what)
	case len(name) > most:
		return fmt.Errorf("%s %s has %d bytes, allowed are %d", what, errtext.Value(name), len(name), most)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("%s %s is no text that PostgreSQL can hold", what, errtext.Value(name))
	}
	return nil
}

// checkQueue checks the name of a queue: * is all of them, to operators.
func checkQueue(what, name string) error {
	if name == "*" {
		return fmt.Errorf(`%s is "*", which is all queues together: name one`, what)
	}
	return checkName(what, name)
}
