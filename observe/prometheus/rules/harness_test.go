package rules_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

var syntax = parser.NewParser(parser.Options{})

// load reads the alerts as Prometheus does.
func load(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	file, errs := rulefmt.ParseFile("alerts.yaml", false, model.LegacyValidation, syntax, nil)
	if len(errs) > 0 {
		t.Fatalf("alerts.yaml: %v", errs)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// alerts evaluates the alerts each minute on series, which are in the notation of promtool, and
// returns those that fire at the end: for them, their queries have answered for long enough.
// Package rules of Prometheus would do so too, and needs the libraries of all clouds.
func alerts(t *testing.T, minutes int, series ...string) (firing []string) {
	t.Helper()
	data := parse(t, series)
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	defer engine.Close()
	for _, r := range load(t) {
		since := map[string]time.Time{}
		for n := range minutes + 1 {
			at := time.Unix(0, 0).Add(time.Duration(n) * time.Minute)
			pending := map[string]time.Time{}
			for _, s := range query(t, engine, data, r.Expr, at) {
				of := s.Metric.String()
				if pending[of] = at; !since[of].IsZero() {
					pending[of] = since[of]
				}
				if n == minutes && at.Sub(pending[of]) >= time.Duration(r.For) {
					firing = append(firing, describe(r.Alert, s.Metric))
				}
			}
			since = pending
		}
	}
	slices.Sort(firing)
	return slices.Compact(firing)
}

func query(t *testing.T, engine *promql.Engine, data database, text string, at time.Time) promql.Vector {
	t.Helper()
	q, err := engine.NewInstantQuery(t.Context(), data, nil, text, at)
	if err != nil {
		t.Fatalf("%v, in %s", err, text)
	}
	defer q.Close()
	answer := q.Exec(t.Context())
	vector, err := answer.Vector()
	if err != nil {
		t.Fatalf("%v, of %s", err, text)
	}
	return slices.Clone(vector)
}

// describe names an alert and what it is about.
func describe(alert string, l labels.Labels) string {
	text := strings.TrimPrefix(alert, "Pgfrontier")
	for _, name := range []string{"consumer", "partition", "queue", "kind", "schedule", "table", "what"} {
		if v := l.Get(name); v != "" {
			text += " " + v
		}
	}
	return text
}

// database has series of a value a minute, from 1970 on.
type database []storage.Series

func parse(t *testing.T, series []string) (all database) {
	t.Helper()
	for _, text := range series {
		name, values, err := syntax.ParseSeriesDesc(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var samples []chunks.Sample
		for n, v := range values {
			if !v.Omitted {
				samples = append(samples, sample{int64(n) * time.Minute.Milliseconds(), v.Value})
			}
		}
		all = append(all, storage.NewListSeries(name, samples))
	}
	return all
}

// Querier returns what reads all of it.
func (d database) Querier(int64, int64) (storage.Querier, error) { return reader{d}, nil }

type reader struct{ all database }

func (r reader) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, s := range r.all {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) }) {
			found = append(found, s)
		}
	}
	return &seriesSet{found, -1}
}

func (reader) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (reader) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (reader) Close() error { return nil }

type seriesSet struct {
	all []storage.Series
	at  int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *seriesSet) At() storage.Series                { return s.all[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// sample is a value at a time in milliseconds.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
