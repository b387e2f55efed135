package jobs

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
)

// maxName bounds the names of kinds and queues, maxKey bounds keys, in bytes. An index contains the
// keys.
const (
	maxName = 200
	maxKey  = 1000
)

// checkName checks a name that the program gives. what is the option or field to name in the error.
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

// checkQueue checks the name of a queue. The name * is reserved: for operators it means all queues.
func checkQueue(what, name string) error {
	if name == "*" {
		return fmt.Errorf(`%s is "*", which is all queues together: name one`, what)
	}
	return checkName(what, name)
}
