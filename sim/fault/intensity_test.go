package fault

import (
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var table = Table{{Name: "kill"}, {Name: "stop"}, {Name: "cut"}}

func TestReadAsPrinted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chosen := map[string]float64{}
		for _, name := range table.Names() {
			if x := rapid.Float64Range(0, most).Draw(t, name); x > 0 {
				chosen[name] = x
			}
		}
		read, err := table.Parse(table.Format(chosen))
		if err != nil || !maps.Equal(read, chosen) {
			t.Errorf("%v is printed as %q and read as %v, %v", chosen, table.Format(chosen), read, err)
		}
	})
}

func TestAllAndNone(t *testing.T) {
	all, err := table.Parse("all")
	if err != nil || !maps.Equal(all, table.All()) || table.Format(all) != "all" {
		t.Errorf("all: %v, %v", all, err)
	}
	none, err := table.Parse("none")
	if err != nil || len(none) != 0 || table.Format(none) != "none" {
		t.Errorf("none: %v, %v", none, err)
	}
}

func TestRefused(t *testing.T) {
	for text, says := range map[string]string{
		"kil=1":    `no fault "kil"; there are: kill, stop, cut`,
		"kill":     `of kill is ""`,
		"kill=-1":  "from 0 to 10",
		"kill=11":  "from 0 to 10",
		"kill=NaN": "from 0 to 10",
	} {
		if _, err := table.Parse(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want something that says %s", text, err, says)
		}
	}
}
