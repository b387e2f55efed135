package ident

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
)

// maxConsumer is the maximum length of a consumer's name, in bytes.
const maxConsumer = 200

// CheckConsumer refuses a consumer's name that is invalid or that a log or a list could not
// show unchanged.
func CheckConsumer(name string) error {
	switch {
	case strings.TrimSpace(name) == "":
		return fmt.Errorf("the consumer's name is empty")
	case len(name) > maxConsumer:
		return fmt.Errorf("the consumer's name has %d bytes, at most %d are kept", len(name), maxConsumer)
	case !utf8.ValidString(name):
		return fmt.Errorf("the consumer's name %s has invalid UTF-8", errtext.Value(name))
	}
	for _, r := range name {
		if unicode.In(r, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			return fmt.Errorf("the consumer's name %s has the control character %U: remove it", errtext.Value(name), r)
		}
	}
	return nil
}
