package server

import (
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
