package oracle

import (
	"os"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/testdeps"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testdeps.Summarize()
	os.Exit(code)
}
