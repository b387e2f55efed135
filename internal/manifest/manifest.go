// Package manifest defines the text in which a build declares its consumers, so that they can be
// compared with a deployment before the build runs.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
)

// Consumer is what a build declares of a consumer.
type Consumer struct {
	Name string `json:"name"`
	scope.Scope
	partition.Demand // of partitions
}

// format is the version of the text. It grows if a reader of an older text would go wrong.
const format = 1

type text struct {
	Format    int        `json:"format"`
	Consumers []Consumer `json:"consumers"`
}

// Text returns the text for consumers, in order of name.
func Text(consumers []Consumer) ([]byte, error) {
	consumers = slices.SortedFunc(slices.Values(consumers), func(a, b Consumer) int { return strings.Compare(a.Name, b.Name) })
	all, err := json.MarshalIndent(text{format, consumers}, "", "  ")
	return append(all, '\n'), err
}

// Parse parses the result of [Text], in order of name.
func Parse(data []byte) ([]Consumer, error) {
	var t text
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("it is no JSON that worker.Describe returns: %w", err)
	}
	if t.Format != format {
		return nil, fmt.Errorf("its format is %d, and this program reads format %d: use programs of one version of the library", t.Format, format)
	}
	if len(t.Consumers) == 0 {
		return nil, errors.New("it has no consumers")
	}
	slices.SortFunc(t.Consumers, func(a, b Consumer) int { return strings.Compare(a.Name, b.Name) })
	for i, c := range t.Consumers {
		if err := ident.CheckConsumer(c.Name); err != nil {
			return nil, fmt.Errorf("consumers[%d]: %w", i, err)
		}
		if i > 0 && t.Consumers[i-1].Name == c.Name {
			return nil, fmt.Errorf("it has consumer %s twice", errtext.Value(c.Name))
		}
		if c.Count < 1 || c.Count > partition.MaxCount {
			return nil, fmt.Errorf("consumer %s: a count of %d partitions, allowed is 1 to %d", errtext.Value(c.Name), c.Count, partition.MaxCount)
		}
		t.Consumers[i].Scope = scope.Of(c.Types, c.Version, c.Start, c.Projection)
	}
	return t.Consumers, nil
}
