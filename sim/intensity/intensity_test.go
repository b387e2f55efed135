package intensity

import (
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var names = []string{"kill", "stop", "cut"}

func TestReadAsPrinted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chosen := map[string]float64{}
		for _, name := range names {
			if x := rapid.Float64Range(0, most).Draw(t, name); x > 0 {
				chosen[name] = x
			}
		}
		read, err := Parse(Format(chosen, names), names)
		if err != nil || !maps.Equal(read, chosen) {
			t.Errorf("%v is printed as %q and read as %v, %v", chosen, Format(chosen, names), read, err)
		}
	})
}

func TestAllAndNone(t *testing.T) {
	all, err := Parse("all", names)
	if err != nil || !maps.Equal(all, All(names)) || Format(all, names) != "all" {
		t.Errorf("all: %v, %v", all, err)
	}
	none, err := Parse("none", names)
	if err != nil || len(none) != 0 || Format(none, names) != "none" {
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
		if _, err := Parse(text, names); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want something that says %s", text, err, says)
		}
	}
}
