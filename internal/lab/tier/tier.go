// Package tier tells the two tiers of tests apart. The quick tier is go test
// without a flag: every behaviour has a test in it. The long tier runs every test,
// with more drawn cases: make long, or LONG_TESTS=1.
//
// Command tierlint checks the calls of Long, and the list of tests in quarantine,
// which is quarantine.txt beside this file.
package tier

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Variable names the environment variable that chooses the tier: 1 is the long
// tier; 0, empty and unset are the quick tier.
const Variable = "LONG_TESTS"

// Long skips the test unless the long tier runs. quick says what the quick tier
// has of the same. It starts with the name of a test of the same directory:
//
//	tier.Long(t, "TestStepped plays 20 scripts")
func Long(t testing.TB, quick string) {
	t.Helper()
	long, err := isLong()
	if err != nil {
		t.Fatal(err)
	}
	if !long {
		t.Skipf("long tier: make long, or %s=1; the quick tier has %s", Variable, quick)
	}
}

// IsLong reports whether the long tier runs. It panics if the variable has a value
// that is neither 1 nor 0.
func IsLong() bool {
	long, err := isLong()
	if err != nil {
		panic(err)
	}
	return long
}

func isLong() (bool, error) {
	switch value := os.Getenv(Variable); value {
	case "1":
		return true, nil
	case "", "0":
		return false, nil
	default:
		return false, fmt.Errorf("%s is %q: set it to 1 for the long tier, or to 0", Variable, value)
	}
}

// Amount is what a test has of something that costs: rows, cases or workers. It panics if
// the variable has a value that is neither 1 nor 0.
func Amount(quick, long int) int {
	if IsLong() {
		return long
	}
	return quick
}

// Checks sets the number of checks of rapid for the rest of the test, for each of
// the two tiers. -rapid.checks on the command line has precedence. The number is the
// process's: Checks panics in a test that runs in parallel with others.
func Checks(t testing.TB, quick, long int) {
	t.Helper()
	t.Setenv("TIER_CHECKS", "") // panics in a parallel test
	isLong, err := isLong()
	if err != nil {
		t.Fatal(err)
	}
	n := quick
	if isLong {
		n = long
	}
	checks := flag.Lookup("rapid.checks")
	if checks == nil {
		t.Fatal("there is no flag -rapid.checks: import pgregory.net/rapid")
	}
	if onCommandLine("rapid.checks") {
		return
	}
	before := checks.Value.String()
	t.Cleanup(func() { _ = checks.Value.Set(before) })
	if err := checks.Value.Set(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
}

// FixSeed makes rapid draw the same cases each time in the quick tier, which so fails only
// for a change. The long tier draws new ones. -rapid.seed and -rapid.failfile on the command
// line have precedence. Call it before the tests run.
func FixSeed() {
	seed := flag.Lookup("rapid.seed")
	if seed != nil && !IsLong() && !onCommandLine("rapid.seed") && !onCommandLine("rapid.failfile") {
		_ = seed.Value.Set("1")
	}
}

// onCommandLine reports whether a flag was given. Package flag cannot tell: a flag that
// TestMain has set counts as given.
func onCommandLine(flag string) bool {
	return slices.ContainsFunc(os.Args[1:], func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return strings.TrimLeft(name, "-") == flag && strings.HasPrefix(name, "-")
	})
}
