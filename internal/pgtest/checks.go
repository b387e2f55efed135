package pgtest

import (
	"flag"
	"testing"
)

// CheckByDefault sets how often rapid checks in a test whose checks are dear,
// unless the command line says.
func CheckByDefault(t *testing.T, times string) {
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		t.Cleanup(func() { _ = checks.Value.Set(checks.DefValue) })
		_ = checks.Value.Set(times)
	}
}
