package rules_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/pgfrontier/worker/observe/metrics"
)

// What alerts and panels ask for is what workers expose: tests of module prometheus see a real
// worker expose each of metrics.All, and nothing else.
func TestQueriesAskForWhatIsThere(t *testing.T) {
	asked := map[string]bool{}
	for _, r := range load(t) {
		check(t, r.Alert, r.Expr, asked)
	}
	for title, queries := range panels(t) {
		for _, q := range queries {
			check(t, "panel "+title, q, asked)
		}
	}
	for _, m := range metrics.All() {
		if !asked[m.Name] {
			t.Errorf("neither an alert nor a panel asks for %s", m.Name)
		}
	}
}

// ofTheScrape are labels that Prometheus adds.
var ofTheScrape = []string{"namespace", "job", "instance", "le", model.MetricNameLabel}

// check parses a query, and demands that its metrics and labels are there.
func check(t *testing.T, where, query string, asked map[string]bool) {
	t.Helper()
	expr, err := syntax.ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v, in %s", where, err, query)
		return
	}
	var allowed, grouped []string
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			m := find(n.Name)
			if m == nil {
				t.Errorf("%s asks for %s, which no worker has", where, n.Name)
				return nil
			}
			asked[m.Name] = true
			allowed = append(allowed, m.Attributes...)
			for _, l := range n.LabelMatchers {
				if !slices.Contains(ofTheScrape, l.Name) && !slices.Contains(m.Attributes, l.Name) {
					t.Errorf("%s asks for %s by %s, which it has not", where, n.Name, l.Name)
				}
			}
		case *parser.AggregateExpr:
			grouped = append(grouped, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				grouped = append(grouped, n.VectorMatching.MatchingLabels...)
			}
		}
		return nil
	})
	for _, name := range grouped {
		if !slices.Contains(ofTheScrape, name) && !slices.Contains(allowed, name) {
			t.Errorf("%s groups by %s, which its metrics have not", where, name)
		}
	}
}

// A panel shows what was chosen above it: not what other deployments, consumers or queues do.
func TestPanelsShowWhatWasChosen(t *testing.T) {
	for title, queries := range panels(t) {
		for _, q := range queries {
			expr, err := syntax.ParseExpr(q)
			if err != nil {
				t.Fatalf("panel %q: %v", title, err)
			}
			parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
				n, is := node.(*parser.VectorSelector)
				if !is {
					return nil
				}
				for _, name := range []string{"job", "consumer", "queue"} {
					chosen := func(l *labels.Matcher) bool { return l.String() == fmt.Sprintf(`%s=~"$%s"`, name, name) }
					if (name == "job" || slices.Contains(find(n.Name).Attributes, name)) && !slices.ContainsFunc(n.LabelMatchers, chosen) {
						t.Errorf("panel %q shows %s of any %s", title, n.Name, name)
					}
				}
				return nil
			})
		}
	}
}

// find returns the metric of a name.
func find(name string) *metrics.Metric {
	for _, m := range metrics.All() {
		own := m.Prometheus()
		if m.Kind == metrics.Histogram {
			own += "_bucket"
		}
		if own == name {
			return m
		}
	}
	return nil
}

// panels returns the queries of the dashboard by panel, with values for its variables.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID        string
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
		Panels []struct {
			ID          int
			Type, Title string
			Description string
			Targets     []struct{ Expr, LegendFormat, RefID string }
			Datasource  struct{ UID string }
			GridPos     struct{ X, Y, W, H int }
			FieldConfig struct {
				Defaults  struct{ Unit string }
				Overrides []struct {
					Matcher    struct{ ID, Options string }
					Properties []struct{ ID, Value string }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &board); err != nil || board.UID == "" {
		t.Fatal(err)
	}
	variables := []string{"__rate_interval"}
	for _, v := range board.Templating.List {
		variables = append(variables, v.Name)
		for _, name := range regexp.MustCompile(`pgfrontier_\w+`).FindAllString(v.Definition, -1) {
			if find(name) == nil {
				t.Errorf("variable %s asks for %s, which no worker has", v.Name, name)
			}
		}
	}
	all, ids := map[string][]string{}, map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: its id must be its own, and it must be on the grid", p.Title)
		}
		if ids[p.ID] = true; p.Type == "row" {
			continue
		}
		if all[p.Title] != nil {
			t.Errorf("there are two panels %q", p.Title)
		}
		if len(p.Targets) == 0 || p.Description == "" || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q: it must have a query, a description and the source of the dashboard", p.Title)
		}
		units := map[string]string{} // of the queries that have another one than the panel
		for _, o := range p.FieldConfig.Overrides {
			if o.Matcher.ID == "byFrameRefID" && o.Properties[0].ID == "unit" {
				units[o.Matcher.Options] = o.Properties[0].Value
			}
		}
		for _, target := range p.Targets {
			seconds := strings.Contains(target.Expr, "_seconds") && !strings.HasSuffix(target.LegendFormat, ", s")
			if unit := cmp.Or(units[target.RefID], p.FieldConfig.Defaults.Unit); (unit == "s") != seconds {
				t.Errorf("panel %q shows %s in %q", p.Title, target.Expr, unit)
			}
			all[p.Title] = append(all[p.Title], strings.NewReplacer("$__rate_interval", "5m").Replace(target.Expr))
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !slices.Contains(variables, v[1]) {
					t.Errorf("panel %q has the variable %s, which is none", p.Title, v[1])
				}
			}
			for _, l := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !strings.Contains(target.Expr, l[1]) {
					t.Errorf("panel %q has %s in its legend, which its query has not", p.Title, l[1])
				}
			}
		}
	}
	return all
}
