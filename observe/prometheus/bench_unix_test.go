//go:build unix

package prometheus_test

import (
	"testing"

	"github.com/pgfrontier/worker/internal/lab/metricstest"
	pgprometheus "github.com/pgfrontier/worker/observe/prometheus"
)

// What metrics cost a consumer that does nothing else:
//
//	go test -run '^$' -bench . -benchtime 50000x -count 5
func BenchmarkCatchUp(b *testing.B) {
	b.Run("without", func(b *testing.B) { metricstest.CatchUp(b, nil, nil) })
	b.Run("metrics", func(b *testing.B) { metricstest.CatchUp(b, pgprometheus.New(), nil) })
}
