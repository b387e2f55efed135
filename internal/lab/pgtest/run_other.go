//go:build !linux

package pgtest

import (
	"context"
	"errors"

	"github.com/pgfrontier/worker/internal/lab/embedded"
)

// Without /proc a run is not recognised, and each process has a server.

const runTemplate = "pgtest_template"

type run struct{}

func currentRun() (run, bool) { return run{}, false }

func (run) join(context.Context) (*embedded.Server, error) { return nil, errors.ErrUnsupported }

func dataDir() string { return "" }

func host() {}
