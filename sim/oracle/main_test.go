package oracle

import (
	"os"
	"testing"

	"github.com/pgfrontier/worker/internal/lacking"
)

func TestMain(m *testing.M) {
	code := m.Run()
	lacking.Summarize()
	os.Exit(code)
}
