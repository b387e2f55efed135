package ident

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
)

// maxHost is the maximum length of a machine's name, in bytes.
const maxHost = 200

// CheckHost refuses a name of a machine that PostgreSQL cannot store. The error names the option.
func CheckHost(option, name string) error {
	if len(name) > maxHost || strings.ContainsRune(name, 0) || !utf8.ValidString(name) {
		return fmt.Errorf("%s: %s is no text of at most %d bytes", option, errtext.Value(name), maxHost)
	}
	return nil
}
