package frontier

import (
	"flag"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "300") // the command line may say otherwise
	pgtest.Main(m)
}
