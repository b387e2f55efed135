package tier_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/tier"
)

// recorder records how a test that calls package tier ends.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (*recorder) Helper() {}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) {
	r.failed = fmt.Sprint(args...)
	runtime.Goexit()
}

// ending returns how f ends with a test of its own.
func ending(t *testing.T, f func(t testing.TB)) (skipped, failed string, returned bool) {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
		returned = true
	}()
	<-done
	return r.skipped, r.failed, returned
}

func TestLongSkipsInTheQuickTier(t *testing.T) {
	long := func(t testing.TB) { tier.Long(t, "TestChecksDependOnTheTier checks three values") }
	for _, value := range []string{"", "0"} {
		t.Setenv(tier.Variable, value)
		skipped, failed, returned := ending(t, long)
		const want = "long tier: make long, or LONG_TESTS=1; the quick tier has TestChecksDependOnTheTier checks three values"
		if skipped != want || failed != "" || returned || tier.IsLong() {
			t.Errorf("%q: skipped %q, failed %q, returned %t, long %t; want a skip %q", value, skipped, failed, returned, tier.IsLong(), want)
		}
	}
	t.Setenv(tier.Variable, "1")
	if n := tier.Amount(1, 2); n != 2 {
		t.Errorf("1: an amount of %d, want 2", n)
	}
	if skipped, failed, returned := ending(t, long); !returned || !tier.IsLong() {
		t.Errorf("1: skipped %q, failed %q; want neither", skipped, failed)
	}
	t.Setenv(tier.Variable, "yes")
	for name, f := range map[string]func(testing.TB){"Long": long, "Checks": func(t testing.TB) { tier.Checks(t, 1, 2) }} {
		if _, failed, returned := ending(t, f); returned || !strings.Contains(failed, `LONG_TESTS is "yes": set it to 1`) {
			t.Errorf("%s with yes: failed %q, returned %t; want a failure that names the value", name, failed, returned)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("IsLong accepts yes")
		}
	}()
	tier.IsLong()
}

func TestChecksDependOnTheTier(t *testing.T) {
	checks := flag.Lookup("rapid.checks").Value
	args, before := os.Args, checks.String()
	t.Cleanup(func() { os.Args = args })
	for _, c := range []struct {
		tier, arg string
		want      int
	}{{"", "-test.v", 3}, {"1", "-test.v", 7}, {"1", "-rapid.checks=" + before, 0}, {"", "--rapid.checks=" + before, 0}} {
		t.Run(c.tier+c.arg, func(t *testing.T) {
			os.Args = []string{args[0], c.arg}
			t.Setenv(tier.Variable, c.tier)
			tier.Checks(t, 3, 7)
			if c.want == 0 {
				if checks.String() != before {
					t.Errorf("-rapid.checks is %s, want %s of the command line", checks, before)
				}
				return
			}
			n := 0
			rapid.Check(t, func(*rapid.T) { n++ })
			if n != c.want {
				t.Errorf("%d checks, want %d", n, c.want)
			}
		})
		if checks.String() != before {
			t.Errorf("-rapid.checks is %s after the test, want %s", checks, before)
		}
	}
}

// The number of checks is the process's, so a parallel test may not set it.
func TestChecksRefusesParallelTests(t *testing.T) {
	t.Run("parallel", func(t *testing.T) {
		t.Parallel()
		defer func() {
			if recover() == nil {
				t.Error("Checks accepts a parallel test")
			}
		}()
		tier.Checks(t, 3, 7)
	})
}

func TestSeedIsFixedInTheQuickTier(t *testing.T) {
	seed := flag.Lookup("rapid.seed").Value
	args, before := os.Args, seed.String()
	t.Cleanup(func() { os.Args = args; _ = seed.Set(before) })
	for _, c := range []struct{ tier, arg, want string }{
		{"", "-test.v", "1"}, {"1", "-test.v", "0"}, {"", "-rapid.seed=0", "0"}, {"", "--rapid.failfile=x", "0"},
	} {
		_ = seed.Set("0")
		os.Args = []string{args[0], c.arg}
		t.Setenv(tier.Variable, c.tier)
		if tier.FixSeed(); seed.String() != c.want {
			t.Errorf("LONG_TESTS=%s, %s: the seed is %s, want %s", c.tier, c.arg, seed, c.want)
		}
	}
}
