package frontier

import (
	"flag"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "300") // a flag on the command line overrides this
	pgtest.Main(m)
}
