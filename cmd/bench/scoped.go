package main

import (
	"context"
	"fmt"
)

// scoped compares a consumer of few events with a consumer of all.
func scoped(ctx context.Context, l *lab) ([]row, error) {
	s, err := l.history(ctx)
	if err != nil {
		return nil, err
	}
	var few, all float64
	var countedFew, countedAll int
	for pass := range l.size.passes {
		w := &scopedWalker{walker{name: fmt.Sprintf("scoped_%d", pass)}}
		rate, n, err := s.walk(ctx, w, &w.walker)
		if err != nil {
			return nil, err
		}
		few, countedFew = max(few, rate), countedFew+n
		if rate, n, err = s.walkAll(ctx, fmt.Sprintf("unscoped_%d", pass)); err != nil {
			return nil, err
		}
		all, countedAll = max(all, rate), countedAll+n
	}
	return []row{
		{part: "1% of " + grouped(l.size.history) + " events", measured: grouped(few) + " positions/s", counted: countedFew},
		{part: "all of them", measured: grouped(all) + " positions/s", counted: countedAll},
		{part: "ratio", measured: fmt.Sprintf("%.1f", few/all), goal: ">= 20", reached: few/all >= 20},
	}, nil
}

type scopedWalker struct{ walker }

func (*scopedWalker) AggregateTypes() []string { return []string{rare} }
