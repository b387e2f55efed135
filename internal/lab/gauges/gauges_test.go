package main

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/tier"
)

// The search finds the best order of few files, which trying all orders finds too.
func TestOrderIsTheBestOfFewFiles(t *testing.T) {
	tier.Checks(t, 500, 5000)
	rapid.Check(t, func(t *rapid.T) {
		files := rapid.IntRange(1, 6).Draw(t, "files")
		refs := map[reference]int{}
		for from := range files {
			for to := range files {
				if from != to && rapid.Bool().Draw(t, "refers") {
					refs[reference{from, to}] = rapid.IntRange(1, 5).Draw(t, "weight")
				}
			}
		}
		o, up := order(files, refs)
		if n := upwards(o, refs); n != up {
			t.Fatalf("order says %d, its order has %d", up, n)
		}
		best := math.MaxInt
		permute(files, func(o []int) { best = min(best, upwards(o, refs)) })
		if up != best {
			t.Fatalf("order finds %d upwards, the best order has %d", up, best)
		}
	})
}

func permute(n int, visit func([]int)) {
	o := make([]int, 0, n)
	var next func()
	next = func() {
		if len(o) == n {
			visit(o)
			return
		}
	candidates:
		for i := range n {
			for _, taken := range o {
				if taken == i {
					continue candidates
				}
			}
			o = append(o, i)
			next()
			o = o[:len(o)-1]
		}
	}
	next()
}

func TestCeilingsOnlyFall(t *testing.T) {
	const text = "# a comment\nbelow 5 1\nabove 5 1\n"
	gauges := []gauge{{name: "below", now: 4}, {name: "above", now: 6, where: "a.go"}}
	if err := readCeilings(text, gauges); err != nil {
		t.Fatal(err)
	}
	var complaint bytes.Buffer
	if status := judge(&complaint, gauges); status != 1 || strings.Contains(complaint.String(), "below is") || !strings.Contains(complaint.String(), "above is 6 (a.go), above its ceiling 5") {
		t.Errorf("exit status %d, %q", status, complaint.String())
	}
	if err := readCeilings(writeCeilings(text, gauges), gauges); err != nil {
		t.Fatal(err)
	}
	if gauges[0].ceiling != 4 || gauges[1].ceiling != 5 || gauges[0].goal != 1 {
		t.Errorf("lowered to %+v", gauges)
	}
}

func TestCeilingsNameEachGauge(t *testing.T) {
	for text, says := range map[string]string{
		"":                 "has no line for one",
		"one 1 1\ntwo 2 2": "has a line for two, which is not measured",
		"one 1":            `has the line "one 1"`,
		"one x 1":          "the ceiling of one",
		"one 1 x":          "the goal of one",
	} {
		if err := readCeilings(text, []gauge{{name: "one", now: 1}}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

// A small module has each figure that can be counted by hand.
func TestMeasure(t *testing.T) {
	dir := t.TempDir() // a go.mod in testdata would be one more module of the repository
	if err := errors.Join(os.CopyFS(dir, os.DirFS("testdata")), os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+module+"\n\ngo 1.25\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	folders, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	gauges, err := measure(dir, folders)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"files-at-top": 3, "references-upwards": 1, "calls-upwards": 1, "type-methods": 3, "type-files": 2,
		"function-lines": 5, "sql-lines": 4, "exported-names": 4, "library-lines": 40, "library-code": 24, "document-words": 15, "sim-lines": 4,
	}
	for _, g := range gauges {
		if g.now != want[g.name] {
			t.Errorf("%s is %d%s, want %d", g.name, g.now, in(g), want[g.name])
		}
	}
}
